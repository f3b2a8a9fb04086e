//! `nn::Embedding`: equal to candle's in float and to torch's when quantized; tables that are tied
//! to an output projection.

mod common;

use candle_core::{DType, Device, IndexOp, Module, Tensor, Var};
use candle_dynquant::observer::{ObserverConfig, ObserverKind, ZeroPoints};
use candle_dynquant::{
    DynamicConfig, ErrorKind, HalfType, Layer, LayerKind, LeftReason, LentWeight, Outcome, QConfig,
    QConfigSpec, QDType, QScheme, QTable, Quantizable, Report, Result, WeightDType, WeightId,
    WeightInfo, nn, quantize_dynamic,
};
use common::fixture::{Fixture, difference, report};
use common::generator;
use half::{bf16, f16};

const CPU: &Device = &Device::Cpu;
const TABLES: QConfig = QConfig::table();

fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).expect("a float tensor");
    let flat = tensor.flatten_all().expect("a tensor");
    flat.to_vec1().expect("f32")
}

fn table(rows: usize, size: usize) -> Tensor {
    let values: Vec<f32> =
        (0..rows * size).map(|i| ((i * 37 + i / size * 11) % 101) as f32 / 17. - 2.).collect();
    Tensor::from_vec(values, (rows, size), CPU).expect("a table")
}

fn weight_only(dtype: QDType, kind: ObserverKind, qscheme: QScheme) -> QConfig {
    QConfig::Table(ObserverConfig::new(kind, dtype, qscheme))
}

/// Every way a table can be quantized, with the max error of the table above.
fn qconfigs() -> Vec<(QConfig, f32)> {
    use ObserverKind::{MinMax, PerChannelMinMax};
    use QScheme::{PerChannelAffine, PerChannelSymmetric, PerTensorAffine, PerTensorSymmetric};
    let half_step = 0.5 * 6. / 255. + 1e-5;
    vec![
        (TABLES, half_step),
        (QConfig::float16(), 4. / 4096.),
        (weight_only(QDType::QInt8, MinMax, PerTensorAffine), half_step),
        (weight_only(QDType::QUInt8, MinMax, PerTensorSymmetric), 2.5 * half_step),
        (weight_only(QDType::QInt8, PerChannelMinMax, PerChannelSymmetric), 2.5 * half_step),
        (weight_only(QDType::QUInt8, PerChannelMinMax, PerChannelAffine), half_step),
    ]
}

#[test]
fn tables_and_rows_equal_torch() -> Result<()> {
    let fixture = Fixture::open("embedding");
    let cases = fixture.cases();
    assert!(cases.len() >= 35);
    let mut failures = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let size = |key: &str| case[key].as_u64().expect("a size") as usize;
        let (n, k) = (size("n"), size("k"));
        let float = Tensor::from_vec(generator::tensor(&[n, k], case), (n, k), CPU)?;
        let layer = nn::Embedding::new(float, k).quantize(&TABLES)?;
        let read = layer.codes().expect("a quantized table");
        let ZeroPoints::Float(zero_points) = &read.zero_points else {
            panic!("{name}: expected float zero points");
        };
        let output = values(&layer.forward(&Tensor::arange(0, n as u32, CPU)?)?);
        for (part, got) in
            [("scale", &read.scales), ("zero_point", zero_points), ("output", &output)]
        {
            if let Some(difference) = difference(got, &fixture.f32(&format!("{name}.{part}"))) {
                failures.push(format!("{name} {case}: {part}: {difference}"));
            }
        }
        let codes = fixture.u8(&format!("{name}.codes"));
        if read.shape != [n, k] || !codes.into_iter().map(i32::from).eq(read.codes) {
            failures.push(format!("{name} {case}: codes differ"));
        }
    }
    report(&failures, cases.len());
    Ok(())
}

/// Indexes of every dtype, of several ranks and layouts, below 5.
fn index_tensors() -> Vec<Tensor> {
    let make = || -> candle_core::Result<Vec<Tensor>> {
        let square = Tensor::new(&[[0u32, 4], [3, 1], [2, 2]], CPU)?;
        Ok(vec![
            square.clone(),
            square.t()?,
            square.i((1.., 1))?,
            square.to_dtype(DType::I64)?.unsqueeze(0)?,
            square.to_dtype(DType::U8)?,
            Tensor::new(3u32, CPU)?,
            Tensor::zeros((0,), DType::U32, CPU)?,
            Tensor::zeros((2, 0, 3), DType::I64, CPU)?,
            Tensor::new(&[1u8], CPU)?.broadcast_as((2, 3))?,
        ])
    };
    make().expect("indexes")
}

#[test]
fn float_equals_candle_and_quantized_reads_its_own_table() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let float = table(5, 7).to_dtype(dtype)?;
        let theirs = candle_nn::Embedding::new(float.clone(), 7);
        let ours = nn::Embedding::from(theirs.clone());
        for indexes in index_tensors() {
            let expected = theirs.forward(&indexes)?;
            let got = ours.forward(&indexes)?;
            assert_eq!((got.dims(), got.dtype()), (expected.dims(), dtype));
            assert_eq!(values(&got), values(&expected), "{indexes:?}");
        }
        for (qconfig, _) in qconfigs() {
            let quantized = ours.quantize(&qconfig)?;
            assert_eq!(quantized.embeddings().dims(), [5, 7]);
            assert_eq!(quantized.embeddings().dtype(), dtype);
            for indexes in index_tensors() {
                let flat = indexes.flatten_all()?.to_dtype(DType::U32)?.contiguous()?;
                let expected = quantized.embeddings().index_select(&flat, 0)?;
                let got = quantized.forward(&indexes)?;
                assert_eq!(got.dims(), [indexes.dims(), &[7]].concat(), "{qconfig}");
                assert_eq!(got.dtype(), dtype, "{qconfig}");
                assert_eq!(values(&got), values(&expected), "{qconfig} {indexes:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn errors_of_quantized_tables_are_within_their_steps() -> Result<()> {
    let float = nn::Embedding::new(table(40, 65), 65);
    for (qconfig, bound) in qconfigs() {
        let quantized = float.quantize(&qconfig)?;
        let pairs = values(float.embeddings()).into_iter().zip(values(quantized.embeddings()));
        let error = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!((1e-5..bound).contains(&error), "{qconfig}: {error}");
        let qtable = quantized.qtable().expect("a quantized table");
        let (info, elements) = (&quantized.weight_infos()[0], 40 * 65);
        let (dtype, bytes) = match qconfig {
            QConfig::Half(HalfType::Float16) => (WeightDType::F16, 2 * elements),
            _ if qtable.dtype() == Some(QDType::QInt8) => {
                (WeightDType::QInt8, elements + 8 * qtable.scales().len())
            }
            _ => (WeightDType::QUInt8, elements + 8 * qtable.scales().len()),
        };
        assert!(info.quantized, "{qconfig}");
        assert_eq!((info.dtype, info.bytes), (dtype, bytes), "{qconfig}");
        let per_channel = qtable.qscheme().is_some_and(QScheme::is_per_channel);
        let scales = if per_channel { 40 } else { qtable.scales().len().min(1) };
        assert_eq!(qtable.scales().len(), scales, "{qconfig}");
    }
    Ok(())
}

#[test]
fn large_lookups_are_whole_on_all_threads() -> Result<()> {
    let float = table(300, 384);
    let quantized = nn::Embedding::new(float, 384).quantize(&TABLES)?;
    let indexes: Vec<u32> = (0..4_000).map(|i| i * 7919 % 300).collect();
    let indexes = Tensor::from_vec(indexes, (40, 100), CPU)?;
    let expected = quantized.embeddings().index_select(&indexes.flatten_all()?, 0)?;
    assert_eq!(values(&quantized.forward(&indexes)?), values(&expected));
    Ok(())
}

#[test]
fn halves_beyond_their_range_saturate_and_are_counted() -> Result<()> {
    let float = Tensor::new(&[[1e6f32, -1e9], [65_504., 3.]], CPU)?;
    let layer = nn::Embedding::new(float, 2).quantize(&QConfig::float16())?;
    assert_eq!(values(layer.embeddings()), [65_504., -65_504., 65_504., 3.]);
    assert_eq!(layer.qtable().expect("a table").saturated(), 2);
    // The output dtype represents all values of the halves.
    let tiny = Tensor::new(&[[f16::from_f32(0.1)], [f16::MIN_POSITIVE_SUBNORMAL]], CPU)?;
    let layer = nn::Embedding::new(tiny.clone(), 1).quantize(&QConfig::float16())?;
    assert_eq!(values(&layer.forward(&Tensor::new(&[0u32, 1], CPU)?)?), values(&tiny));
    let wide = Tensor::new(&[[bf16::from_f32(3.)], [bf16::MAX]], CPU)?;
    let layer = nn::Embedding::new(wide, 1).quantize(&QConfig::float16())?;
    assert_eq!(layer.qtable().expect("a table").saturated(), 1);
    Ok(())
}

#[test]
fn indexes_out_of_range_are_errors_that_name_them() -> Result<()> {
    let float = nn::Embedding::new(table(300, 4), 4);
    for layer in [float.clone(), float.quantize(&TABLES)?] {
        let cases = [
            (Tensor::new(&[0u32, 300], CPU)?, "300"),
            (Tensor::new(&[u32::MAX], CPU)?, "4294967295"),
            (Tensor::new(&[[5i64, -1]], CPU)?, "-1"),
            (Tensor::new(i64::MAX, CPU)?, "9223372036854775807"),
            (Tensor::new(i64::MIN, CPU)?, "-9223372036854775808"),
        ];
        for (indexes, got) in cases {
            let message = layer.forward(&indexes).expect_err(got).to_string();
            assert!(message.contains(&format!("got {got}")), "{message}");
            assert!(message.contains("300 rows"), "{message}");
            assert!(message.starts_with("Embedding: "), "{message}");
        }
        // The largest u8 is an ordinary index.
        let row = layer.forward(&Tensor::new(&[255u8], CPU)?)?;
        assert_eq!(values(&row), values(&layer.embeddings().i(255)?));
        for indexes in [table(2, 2), Tensor::new(&[1i64], CPU)?.to_dtype(DType::F64)?] {
            let message = layer.forward(&indexes).expect_err("no index").to_string();
            assert!(message.contains("u8, u32 or i64"), "{message}");
        }
    }
    Ok(())
}

#[test]
fn tables_without_rows_or_columns() -> Result<()> {
    for (rows, size) in [(0, 3), (3, 0), (0, 0), (1, 1)] {
        let float = nn::Embedding::new(Tensor::zeros((rows, size), DType::F32, CPU)?, size);
        for (qconfig, _) in qconfigs() {
            let quantized = float.quantize(&qconfig)?;
            for layer in [&float, &quantized] {
                let none = layer.forward(&Tensor::zeros((0, 2), DType::U32, CPU)?)?;
                assert_eq!(none.dims(), [0, 2, size], "{rows} {size} {qconfig}");
                let first = layer.forward(&Tensor::zeros(2, DType::U32, CPU)?);
                assert_eq!(first.is_ok(), rows > 0, "{rows} {size} {qconfig}");
            }
            assert_eq!(quantized.embeddings().dims(), [rows, size]);
        }
    }
    Ok(())
}

#[test]
fn wrong_shapes_are_errors() -> Result<()> {
    for (tensor, size) in
        [(table(3, 4), 5), (table(3, 4).flatten_all()?, 4), (table(4, 6).reshape((4, 2, 3))?, 6)]
    {
        let layer = nn::Embedding::new(tensor, size);
        let error = layer.forward(&Tensor::new(&[0u32], CPU)?).expect_err("a shape");
        assert!(error.to_string().contains("shape mismatch"), "{error}");
        let error = layer.quantize(&TABLES).expect_err("a shape");
        assert!(error.kind() == ErrorKind::ShapeMismatch, "{error}");
    }
    // Columns of a larger table: no row is contiguous with the next.
    let narrowed = nn::Embedding::new(table(5, 9).narrow(1, 2, 4)?, 4);
    let quantized = narrowed.quantize(&TABLES)?;
    for layer in [narrowed, quantized] {
        let row = layer.forward(&Tensor::new(2u32, CPU)?)?;
        assert_eq!(values(&row), values(&layer.embeddings().i(2)?));
    }
    Ok(())
}

#[test]
fn unsupported_qconfigs_name_what_to_use() -> Result<()> {
    let layer = nn::Embedding::new(table(4, 4), 4);
    for qconfig in [QConfig::pytorch(), QConfig::per_channel(), QConfig::int8()] {
        let error = layer.quantize(&qconfig).expect_err("dynamic");
        assert!(error.kind() == ErrorKind::Unsupported, "{error}");
        let message = error.to_string();
        assert!(message.contains("QConfig::table()"), "{message}");
    }
    let scheme = QScheme::PerChannelAffineFloatQParams;
    let mut config = ObserverConfig::new(ObserverKind::PerChannelMinMax, QDType::QInt8, scheme);
    let with = |config: &ObserverConfig| QConfig::Table(config.clone());
    let error = layer.quantize(&with(&config)).expect_err("signed codes");
    assert!(error.to_string().contains("expected quint8"), "{error}");
    config.dtype = QDType::QUInt8;
    config.ch_axis = 1;
    let error = layer.quantize(&with(&config)).expect_err("columns");
    assert!(error.to_string().contains("rows of the table"), "{error}");
    config.ch_axis = -2;
    layer.quantize(&with(&config))?;

    let quantized = layer.quantize(&TABLES)?;
    let error = quantized.quantize(&TABLES).expect_err("twice");
    assert!(error.to_string().contains("quantized already"), "{error}");
    // A table is looked up, a projection multiplies: each refuses the other's qconfig.
    let error = nn::Linear::new(table(4, 4), None).quantize(&TABLES).expect_err("a projection");
    assert!(error.kind() == ErrorKind::Unsupported, "{error}");
    Ok(())
}

#[test]
fn tables_that_are_not_finite_are_errors_that_name_the_element() -> Result<()> {
    for value in [f32::NAN, f32::INFINITY] {
        let tensor = Tensor::new(&[[1f32, 2.], [3., value]], CPU)?;
        for (qconfig, _) in qconfigs() {
            let error = QTable::from_float(&tensor, &qconfig).expect_err("not finite");
            assert_eq!(error.kind(), ErrorKind::NonFinite, "{qconfig}");
            assert!(error.to_string().ends_with("at index [1, 1]"), "{error}");
        }
    }
    let wide = Tensor::new(&[[-3e38f32, 3e38]], CPU)?;
    let error = QTable::from_float(&wide, &TABLES).expect_err("too wide a range");
    assert!(error.to_string().contains("invalid scale"), "{error}");
    Ok(())
}

#[test]
fn gradients_flow_through_a_float_table() -> Result<()> {
    let table = Var::from_tensor(&table(3, 2))?;
    let layer = nn::Embedding::new(table.as_tensor().clone(), 2);
    let loss = layer.forward(&Tensor::new(&[1u8, 1], CPU)?)?.sum_all()?;
    let gradients = loss.backward()?;
    let gradient = gradients.get(&table).expect("a gradient");
    assert_eq!(values(gradient), [0., 0., 2., 2., 0., 0.]);
    Ok(())
}

#[test]
fn it_is_loaded_from_a_checkpoint_and_remembers_its_name() -> Result<()> {
    let vars = candle_nn::VarMap::new();
    let vb = candle_nn::VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let layer = nn::embedding(10, 4, vb.pp("bert").pp("words"))?;
    assert_eq!(layer.embeddings().dims(), [10, 4]);
    assert_eq!(layer.hidden_size(), 4);
    assert_eq!(layer.checkpoint_name(), Some("bert.words"));
    let quantized = layer.quantize(&TABLES)?;
    assert_eq!(quantized.checkpoint_name(), Some("bert.words"));
    let error = quantized.forward(&Tensor::new(10u32, CPU)?).expect_err("out of range");
    assert!(error.to_string().starts_with("bert.words: invalid index"), "{error}");
    Ok(())
}

/// A toy language model: an embedding, a layer, and a head that is the embedding's table.
#[derive(Quantizable, Clone)]
struct Model {
    embedding: nn::Embedding,
    hidden: nn::Linear,
    head: nn::Linear,
}

/// The same, its head before its embedding.
#[derive(Quantizable, Clone)]
struct HeadFirst {
    head: nn::Linear,
    hidden: nn::Linear,
    embedding: nn::Embedding,
}

const VOCABULARY: usize = 70;
const SIZE: usize = 33;

fn model(bias: bool, dtype: DType) -> Model {
    let table = table(VOCABULARY, SIZE).to_dtype(dtype).expect("a table");
    let bias = bias.then(|| {
        let bias = Tensor::arange(0f32, VOCABULARY as f32, CPU).expect("a bias");
        bias.to_dtype(dtype).expect("a bias")
    });
    let hidden = Tensor::eye(SIZE, dtype, CPU).expect("a weight");
    let embedding = nn::Embedding::new(table, SIZE);
    Model {
        head: nn::Linear::tied(&embedding, bias),
        hidden: nn::Linear::new(hidden, None),
        embedding,
    }
}

impl Model {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden.forward(&self.embedding.forward(ids)?)?;
        Ok(self.head.forward(&hidden)?)
    }
}

const TABLE_BYTES: usize = 4 * VOCABULARY * SIZE;

fn with_embeddings(spec: QConfigSpec) -> QConfigSpec {
    spec.embeddings()
}

fn float16() -> QConfigSpec {
    QConfigSpec::default_kinds(QConfig::float16())
}

fn outcome<'a>(report: &'a Report, path: &str) -> &'a Outcome {
    let layer = report.layers.iter().find(|l| l.path == path);
    &layer.expect("a layer").outcome
}

fn bytes(report: &Report, path: &str) -> (usize, usize) {
    let layer = report.layers.iter().find(|l| l.path == path).expect("a layer");
    (layer.bytes_before, layer.bytes_after)
}

fn ids() -> Tensor {
    let ids: Vec<u32> = (0..VOCABULARY as u32).collect();
    Tensor::from_vec(ids, (2, VOCABULARY / 2), CPU).expect("ids")
}

#[test]
fn a_tied_table_is_kept_once() -> Result<()> {
    let affine = ObserverConfig::new(
        ObserverKind::PerChannelMinMax,
        QDType::QUInt8,
        QScheme::PerChannelAffine,
    );
    let affine = QConfig::Int8 { weight: affine, activation: DynamicConfig::default() };
    let specs = [
        QConfigSpec::int8(),
        QConfigSpec::pytorch(),
        QConfigSpec::default_kinds(affine),
        float16(),
    ];
    for (spec, bias, dtype) in specs.into_iter().flat_map(|spec| {
        let dtypes = [DType::F32, DType::BF16];
        let each = [false, true].map(|bias| dtypes.map(|dtype| (spec.clone(), bias, dtype)));
        each.into_iter().flatten()
    }) {
        let case = format!("{spec}bias {bias}, {dtype:?}");
        let float = model(bias, dtype);
        let mut model = float.clone();
        let report = quantize_dynamic(&mut model, &with_embeddings(spec.clone()))?;
        let shared = Outcome::Shared { with: "head".into() };
        assert_eq!(outcome(&report, "embedding"), &shared, "{case}");
        assert_eq!(report.swapped().count(), 3, "{case}");

        // The head equals a head without the embedding, and counts the bytes of both.
        let mut alone = float.head.clone();
        let head_alone = quantize_dynamic(&mut alone, &spec)?;
        assert_eq!(bytes(&report, "head"), bytes(&head_alone, ""), "{case}");
        assert_eq!(bytes(&report, "embedding"), (0, 0), "{case}");
        assert_eq!(model.embedding.weight_infos(), model.head.weight_infos(), "{case}");
        assert!(model.embedding.qtable().is_none(), "{case}");
        let codes = model.embedding.codes();
        assert_eq!(codes, model.head.projection().codes(), "{case}");
        assert_eq!(codes.is_some(), spec != float16(), "{case}");

        // Its rows are the head's channels, also after a clone, and without the bias.
        let model = model.clone();
        let rows = model.embedding.forward(&ids())?;
        assert_eq!(rows.dtype(), dtype, "{case}");
        let weight = model.head.weight().to_dtype(dtype)?;
        assert_eq!(values(&rows), values(&weight), "{case}");
        assert_eq!(values(model.embedding.embeddings()), values(&weight), "{case}");
        assert_eq!(model.embedding.embeddings().dtype(), dtype, "{case}");
        // Dequantized they share a tensor too, if the dtype allows.
        let tensors = [model.embedding.embeddings(), model.head.weight()];
        let [table, weight] = tensors.map(WeightId::of_tensor);
        assert_eq!(table == weight, dtype == DType::F32, "{case}");

        let (expected, got) = (float.forward(&ids())?, model.forward(&ids())?);
        let (expected, got) = (values(&expected), values(&got));
        let signal: f32 = expected.iter().map(|x| x * x).sum();
        let noise: f32 = expected.iter().zip(&got).map(|(a, b)| (a - b).powi(2)).sum();
        assert!(noise < 1e-3 * signal, "{case}: {noise} of {signal}");
        let last = Tensor::new(VOCABULARY as u32, CPU)?;
        let error = model.embedding.forward(&last).expect_err("out of range");
        assert!(error.to_string().contains("below the 70 rows"), "{error}");
    }
    Ok(())
}

#[test]
fn the_order_of_the_fields_does_not_matter() -> Result<()> {
    let Model { embedding, hidden, head } = model(true, DType::F32);
    let mut first = HeadFirst { head, hidden, embedding };
    let mut last = model(true, DType::F32);
    let spec = with_embeddings(QConfigSpec::int8());
    let [a, b] = [quantize_dynamic(&mut first, &spec)?, quantize_dynamic(&mut last, &spec)?];
    for path in ["head", "embedding", "hidden"] {
        assert_eq!(outcome(&a, path), outcome(&b, path));
        assert_eq!(bytes(&a, path), bytes(&b, path));
    }
    let (a, b) = (first.embedding.forward(&ids())?, last.embedding.forward(&ids())?);
    assert_eq!(values(&a), values(&b));
    Ok(())
}

#[test]
fn the_report_says_who_shares() -> Result<()> {
    let mut model = model(false, DType::F32);
    let report = quantize_dynamic(&mut model, &with_embeddings(QConfigSpec::int8()))?;
    let text = report.to_string();
    assert!(text.contains("shares the weight of head"), "{text}");
    assert!(!text.contains("stays in memory"), "{text}");
    let json = serde_json::to_value(&report).expect("JSON");
    let embedding = &json["layers"][0];
    assert_eq!(embedding["outcome"], "shared");
    assert_eq!((&embedding["with"], &embedding["tied_to"]), (&"head".into(), &"head".into()));
    assert_eq!(embedding["bytes_after"], 0);

    // A second call sees a single quantized weight.
    let spec = with_embeddings(QConfigSpec::new()).name("head", QConfig::int8());
    let again = quantize_dynamic(&mut model, &spec)?;
    assert_eq!(again.swapped().count(), 0);
    let head_bytes = bytes(&report, "head").1;
    assert_eq!(bytes(&again, "head"), (head_bytes, head_bytes));
    assert_eq!(bytes(&again, "embedding"), (0, 0));
    let text = again.to_string();
    assert!(text.contains("embedding: its weight is counted with head"), "{text}");
    Ok(())
}

#[test]
fn a_float_tensor_that_stays_is_counted_where_it_stays() -> Result<()> {
    // Only the head: the embedding holds the float table still, so the model grows.
    let mut head_only = model(false, DType::F32);
    let report = quantize_dynamic(&mut head_only, &QConfigSpec::int8())?;
    let left = Outcome::Left { reason: LeftReason::OffByDefault { by: "embeddings" } };
    assert_eq!(outcome(&report, "embedding"), &left);
    assert_eq!(bytes(&report, "embedding"), (TABLE_BYTES, TABLE_BYTES));
    let (before, after) = bytes(&report, "head");
    assert_eq!(before, 0);
    assert!((VOCABULARY * SIZE..TABLE_BYTES / 2).contains(&after), "{after}");
    assert_eq!(report.bytes_before(), 4 * SIZE * SIZE);
    let text = report.to_string();
    let note = "head: its float weight stays in memory, because embedding still holds it";
    assert!(text.contains(note), "{text}");

    // Only the embedding.
    let mut embedding_only = model(false, DType::F32);
    let report = quantize_dynamic(&mut embedding_only, &with_embeddings(QConfigSpec::new()))?;
    assert_eq!(bytes(&report, "head"), (TABLE_BYTES, TABLE_BYTES));
    assert_eq!(bytes(&report, "embedding"), (0, VOCABULARY * (SIZE + 8)));
    let text = report.to_string();
    assert!(text.contains("embedding: its float weight stays"), "{text}");

    // Then the head: no other layer holds its float weight now, and nothing is shared afterwards.
    let report = quantize_dynamic(&mut embedding_only, &QConfigSpec::int8())?;
    assert_eq!(bytes(&report, "head").0, TABLE_BYTES);
    assert_eq!(bytes(&report, "embedding").1, VOCABULARY * (SIZE + 8));
    Ok(())
}

#[test]
fn weights_that_are_equal_but_not_one_tensor_are_two() -> Result<()> {
    let mut model = model(false, DType::F32);
    model.head = nn::Linear::new(table(VOCABULARY, SIZE), None);
    let report = quantize_dynamic(&mut model, &with_embeddings(QConfigSpec::int8()))?;
    assert_eq!(
        outcome(&report, "embedding"),
        &Outcome::Swapped { to: TABLES.eps(f32::MIN_POSITIVE) }
    );
    assert_eq!(bytes(&report, "embedding").0, TABLE_BYTES);
    assert!(report.layers.iter().all(|layer| layer.tied_to.is_none()));
    Ok(())
}

#[test]
fn an_error_leaves_a_tied_model_as_it_was() -> Result<()> {
    let mut model = model(false, DType::F32);
    let ones = Tensor::ones((SIZE, SIZE), DType::F32, CPU)?;
    model.hidden = nn::Linear::new((ones * f64::NAN)?, None);
    let spec = with_embeddings(QConfigSpec::int8());
    let error = quantize_dynamic(&mut model, &spec).expect_err("not finite");
    assert!(error.to_string().starts_with("hidden: "), "{error}");
    let infos = [model.embedding.weight_infos(), model.head.weight_infos()];
    assert!(infos.iter().flatten().all(|info| !info.quantized));
    // A qconfig that a table refuses is refused for a tied table too.
    let spec = QConfigSpec::int8().name("embedding", QConfig::int8());
    let mut model = self::model(false, DType::F32);
    let error = quantize_dynamic(&mut model, &spec).expect_err("dynamic");
    assert!(error.to_string().starts_with("embedding: unsupported qconfig"), "{error}");
    assert!(!model.head.weight_infos()[0].quantized);
    Ok(())
}

#[test]
fn embeddings_share_with_embeddings_that_are_quantized_alike() -> Result<()> {
    let mut models = vec![nn::Embedding::new(table(9, 6), 6); 3];
    let spec = with_embeddings(QConfigSpec::new()).name("2", QConfig::float16());
    let report = quantize_dynamic(&mut models, &spec)?;
    assert_eq!(outcome(&report, "0"), &Outcome::Swapped { to: TABLES.eps(f32::MIN_POSITIVE) });
    assert_eq!(outcome(&report, "1"), &Outcome::Shared { with: "0".into() });
    assert_eq!(outcome(&report, "2"), &Outcome::Swapped { to: QConfig::float16() });
    assert_eq!(report.bytes_before(), 4 * 9 * 6);
    assert_eq!(report.bytes_after(), 9 * (6 + 8) + 2 * 9 * 6);
    let ids = Tensor::arange(0, 9u32, CPU)?;
    assert_eq!(values(&models[0].forward(&ids)?), values(&models[1].forward(&ids)?));
    Ok(())
}

/// A head that a user defines, which lends its projection's weight.
#[derive(Quantizable, Clone)]
#[quantizable(layer)]
struct Head {
    projection: nn::Projection,
}

impl Layer for Head {
    fn kind(&self) -> LayerKind {
        LayerKind::custom("Head")
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        vec![self.projection.info("decoder")]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let projection = self.projection.quantize(qconfig)?;
        Ok(Self { projection })
    }

    fn lend(&self, _name: &str) -> Option<LentWeight> {
        self.projection.lend()
    }
}

#[test]
fn a_layer_of_a_users_own_can_lend() -> Result<()> {
    let table = table(12, 5);
    let projection = nn::Projection::new(table.clone(), None);
    let mut model = (nn::Embedding::new(table, 5), Head { projection });
    let kind = LayerKind::custom("Head");
    let spec = with_embeddings(QConfigSpec::new()).kind(kind, QConfig::int8());
    let report = quantize_dynamic(&mut model, &spec)?;
    assert_eq!(outcome(&report, "0"), &Outcome::Shared { with: "1".into() });
    let rows = model.0.forward(&Tensor::arange(0, 12u32, CPU)?)?;
    assert_eq!(values(&rows), values(model.1.projection.weight()));
    Ok(())
}
