//! Layers that hold views of one memory: each is counted once, and a matrix quantized once.

mod common;

use std::collections::{HashMap, HashSet};

use candle_core::{CpuStorage, Storage};
use candle_dynquant::{Error, Result, WeightId};
use common::*;

const ROWS: usize = 48;
const SIZE: usize = 16;
const BYTES: usize = 4 * ROWS * SIZE;

#[derive(Quantizable, Clone, Default)]
struct Model {
    tables: Vec<nn::Embedding>,
    linears: Vec<nn::Linear>,
}

impl Model {
    fn table(mut self, table: Tensor) -> Result<Self> {
        let size = table.dim(1)?;
        self.tables.push(nn::Embedding::new(table, size));
        Ok(self)
    }

    fn linear(mut self, weight: Tensor) -> Self {
        self.linears.push(nn::Linear::new(weight, None));
        self
    }

    /// Bytes of the memories, by their addresses, that float weights and all biases are in.
    fn float_bytes(&self) -> usize {
        let tables = self.tables.iter().map(|t| (t.weight_infos(), t.embeddings(), None));
        let linears = self.linears.iter();
        let linears = linears.map(|l| (l.weight_infos(), l.weight(), l.bias()));
        let mut memories = HashMap::new();
        for (infos, weight, bias) in tables.chain(linears) {
            let weight = (!infos[0].quantized).then_some(weight);
            for tensor in weight.into_iter().chain(bias) {
                let (storage, _) = tensor.storage_and_layout();
                let Storage::Cpu(CpuStorage::F32(values)) = &*storage else {
                    panic!("f32 on the CPU");
                };
                memories.insert(values.as_ptr().addr(), 4 * values.len());
            }
        }
        memories.values().sum()
    }

    fn quantized_bytes(&self) -> usize {
        let tables = self.tables.iter().flat_map(Layer::weight_infos);
        let weights = tables.chain(self.linears.iter().flat_map(Layer::weight_infos));
        let mut seen = HashSet::new();
        let quantized = weights.filter(|info| info.quantized && seen.insert(info.id.clone()));
        quantized.map(|info| info.bytes).sum()
    }
}

fn memory() -> Result<Tensor> {
    let values: Vec<f32> = (0..ROWS * SIZE).map(|i| (i * 37 % 101) as f32 - 50.).collect();
    Ok(Tensor::from_vec(values, ROWS * SIZE, CPU)?)
}

fn spec() -> QConfigSpec {
    all_int8().embeddings()
}

/// Quantizes, and compares the report with the memories themselves.
fn checked(case: &str, model: &mut Model, spec: &QConfigSpec) -> Result<Report> {
    let before = model.float_bytes();
    let report = quantize_dynamic(model, spec)?;
    let lost = before - model.float_bytes();
    assert_eq!(report.bytes_before(), lost, "{case}: lost\n{report:#}");
    let gained = model.quantized_bytes();
    assert_eq!(report.bytes_after(), gained, "{case}: gained\n{report:#}");
    let stays: usize = report.left().map(|layer| layer.bytes_before).sum();
    assert_eq!(before, lost + stays, "{case}: stays\n{report:#}");
    Ok(report)
}

#[test]
fn views_of_one_matrix_are_one_weight() -> Result<()> {
    let flat = memory()?;
    let table = flat.reshape((ROWS, SIZE))?;
    let views = [
        ("clone", table.clone()),
        ("reshape", flat.reshape((ROWS, SIZE))?),
        ("transposed twice", table.t()?.t()?),
        ("narrowed to all", table.narrow(0, 0, ROWS)?),
        ("an axis more and less", table.unsqueeze(1)?.squeeze(1)?),
        ("detached", table.detach()),
    ];
    for (case, view) in views {
        let float = Model::default().table(table.clone())?.linear(view);
        let mut model = float.clone();
        let report = checked(case, &mut model, &spec())?;
        let shared = Outcome::Shared { with: "linears.0".into() };
        assert_eq!(layer_at(&report, "tables.0").outcome, shared, "{case}");
        assert_eq!(report.bytes_before(), BYTES, "{case}");
        let rows = model.tables[0].forward(&Tensor::arange(0, ROWS as u32, CPU)?)?;
        assert_same(&rows, model.linears[0].weight(), case);

        let report = checked(case, &mut float.clone(), &spec().exclude(["tables"]))?;
        assert_eq!(report.bytes_before(), 0, "{case}: the table stays");
    }
    Ok(())
}

#[test]
fn parts_of_one_memory_are_counted_by_their_size() -> Result<()> {
    let table = memory()?.reshape((ROWS, SIZE))?;
    let part = |start, rows| table.narrow(0, start, rows);
    // The query, key and value of a fused weight.
    let third = ROWS / 3;
    let fused = || -> Result<Model> {
        let model = Model::default().linear(part(0, third)?);
        Ok(model.linear(part(third, third)?).linear(part(2 * third, third)?))
    };
    let bytes = |report: &Report| -> Vec<_> {
        report.layers.iter().map(|layer| layer.bytes_before).collect()
    };
    let report = checked("fused", &mut fused()?, &spec())?;
    assert_eq!(bytes(&report), [BYTES / 3; 3]);
    assert!(report.layers.iter().all(|l| l.tied_to.is_none()));

    // The memory stays while any part of it is in use.
    let report = checked("one left", &mut fused()?, &spec().exclude(["linears.1"]))?;
    assert_eq!(bytes(&report), [0, BYTES, 0]);
    let note = "linears.0: its float weight stays in memory, because linears.1 still holds it";
    assert_parts(&report.to_string(), &[note]);

    // A table with more rows than the head knows of.
    let padded = || Ok::<_, Error>(Model::default().table(table.clone())?.linear(part(0, 40)?));
    let report = checked("padded", &mut padded()?, &spec())?;
    assert_eq!(bytes(&report), [BYTES / 6, BYTES / 6 * 5]);
    for name in ["tables", "linears"] {
        checked(name, &mut padded()?, &spec().exclude([name]))?;
    }

    // Overlapping windows, one of them twice, and rows that no layer reads.
    let mut windows = Model::default().table(part(0, 20)?)?;
    windows = windows.linear(part(4, 20)?).linear(part(10, 20)?).linear(part(4, 20)?);
    checked("windows", &mut windows.clone(), &spec())?;
    for left in 0..3 {
        let spec = spec().exclude([format!("linears.{left}")]);
        checked("windows, one left", &mut windows.clone(), &spec)?;
    }

    // Two matrices with the same elements, and a matrix that repeats one element.
    let mut model = Model::default().linear(table.clone()).linear(table.t()?);
    checked("transposed", &mut model, &spec())?;
    let mut model = Model::default().linear(ones(&[1, SIZE]).broadcast_as((ROWS, SIZE))?);
    let report = checked("broadcast", &mut model, &spec())?;
    assert_eq!(report.bytes_before(), 4 * SIZE);
    Ok(())
}

#[test]
fn the_only_part_of_a_memory_counts_all_of_it_in_every_dtype() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let table = memory()?.to_dtype(dtype)?.reshape((ROWS, SIZE))?;
        let mut model = Model::default().linear(table.narrow(0, 0, ROWS - 8)?);
        let report = quantize_dynamic(&mut model, &spec())?;
        let bytes = ROWS * SIZE * dtype.size_in_bytes();
        assert_eq!(report.bytes_before(), bytes, "{dtype:?}");
    }
    Ok(())
}

#[test]
fn a_bias_within_the_weights_memory_does_not_keep_it() -> Result<()> {
    let flat = memory()?;
    let rows = ROWS - 1;
    let weight = flat.narrow(0, 0, rows * SIZE)?.reshape((rows, SIZE))?;
    let bias = flat.narrow(0, rows * SIZE, rows.min(SIZE))?;
    let weight = weight.narrow(0, 0, SIZE)?;
    let float = nn::Linear::new(weight, Some(bias));
    let mut model = Model { linears: vec![float.clone()], ..Model::default() };
    let report = quantize_dynamic(&mut model, &spec())?;
    assert_eq!(report.bytes_before(), BYTES);
    assert_eq!(model.float_bytes(), 4 * SIZE, "a copy of the bias alone");
    let [got, expected] = [&model.linears[0], &float].map(|linear| linear.bias().expect("a bias"));
    assert_same(got, expected, "the bias");
    Ok(())
}

#[test]
fn an_id_is_of_the_memory_and_of_the_part() -> Result<()> {
    let table = memory()?.reshape((ROWS, SIZE))?;
    let id = |tensor: &Tensor| WeightId::of_tensor(tensor);
    assert_eq!(id(&table), id(&table.flatten_all()?.reshape((ROWS, SIZE))?));
    assert_eq!(id(&table.narrow(0, 1, 2)?), id(&table.narrow(0, 0, 3)?.narrow(0, 1, 2)?));
    let others = [
        table.copy()?,
        table.t()?,
        table.narrow(0, 1, ROWS - 1)?,
        table.narrow(0, 0, ROWS - 1)?,
        table.reshape((SIZE, ROWS))?,
        table.flatten_all()?,
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(id(&table), id(other), "{i}");
    }
    assert!(format!("{:?}", id(&table)).starts_with("WeightId { memory: "));
    let square = table.narrow(0, 0, SIZE)?;
    assert_ne!(id(&square), id(&square.t()?));
    // The stride of an axis of length one has no effect.
    let flat = table.flatten_all()?.narrow(0, 0, SIZE)?;
    let (row, column) = (flat.reshape((1, SIZE))?, flat.reshape((SIZE, 1))?);
    assert_ne!(row.stride(), column.t()?.stride());
    assert_eq!(id(&row), id(&column.t()?));
    // An address is not reused while a copy of it exists.
    let of_temporaries: HashSet<_> =
        (0..100).map(|_| Ok(id(&table.affine(1., 1.)?))).collect::<Result<_>>()?;
    assert_eq!(of_temporaries.len(), 100);
    Ok(())
}
