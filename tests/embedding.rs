//! `nn::Embedding`: equal to candle's in float and to torch's when quantized; tables that are tied
//! to an output projection.

mod common;

use candle_dynquant::observer::{ObserverConfig, ObserverKind, ZeroPoints};
use candle_dynquant::{
    DynamicConfig, HalfType, LeftReason, QDType, QScheme, QTable, Result, WeightDType, WeightId,
};
use common::fixture::{Failures, Fixture, size};
use common::generator::made;
use common::*;
use half::{bf16, f16};

const TABLES: QConfig = QConfig::table();

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
    let mut failures = Failures::default();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let (n, k) = (size(&case["n"]), size(&case["k"]));
        let layer = nn::Embedding::new(made(&[n, k], case), k).quantize(&TABLES)?;
        let read = layer.codes().expect("a quantized table");
        let ZeroPoints::Float(zero_points) = &read.zero_points else {
            panic!("{name}: expected float zero points");
        };
        let output = values(&layer.forward(&Tensor::arange(0, n as u32, CPU)?)?);
        for (part, got) in
            [("scale", &read.scales), ("zero_point", zero_points), ("output", &output)]
        {
            let expected = fixture.f32(&format!("{name}.{part}"));
            failures.compare(format_args!("{name} {case}: {part}"), got, &expected);
        }
        let codes = fixture.u8(&format!("{name}.codes")).into_iter().map(i32::from);
        let are_same = read.shape == [n, k] && codes.eq(read.codes);
        failures.check(are_same, format_args!("{name} {case}: codes differ"));
    }
    failures.report(cases.len());
    Ok(())
}

/// Indexes of every dtype, of several ranks and layouts, below 5.
fn index_tensors() -> candle_core::Result<Vec<Tensor>> {
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
}

#[test]
fn float_equals_candle_and_quantized_reads_its_own_table() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let float = candle_nn::Embedding::new(table(5, 7).to_dtype(dtype)?, 7);
        let float = nn::Embedding::from(float);
        let quantized = qconfigs().into_iter().map(|(qconfig, _)| float.quantize(&qconfig));
        for layer in quantized.collect::<Result<Vec<_>>>()?.iter().chain([&float]) {
            assert_eq!(
                (layer.embeddings().dims(), layer.embeddings().dtype()),
                (&[5, 7][..], dtype)
            );
            let candle = candle_nn::Embedding::new(layer.embeddings().clone(), 7);
            for indexes in index_tensors()? {
                let (got, expected) = (layer.forward(&indexes)?, candle.forward(&indexes)?);
                assert_eq!((got.dims(), got.dtype()), (expected.dims(), dtype), "{layer:?}");
                assert_eq!(values(&got), values(&expected), "{layer:?} {indexes:?}");
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
        let with_scales = elements + 8 * qtable.scales().len();
        let (dtype, bytes) = match (&qconfig, qtable.dtype()) {
            (QConfig::Half(HalfType::Float16), _) => (WeightDType::F16, 2 * elements),
            (_, Some(QDType::QInt8)) => (WeightDType::QInt8, with_scales),
            _ => (WeightDType::QUInt8, with_scales),
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
fn large_lookups_are_whole_and_gradients_flow_through_float_ones() -> Result<()> {
    let float = table(300, 384);
    let quantized = nn::Embedding::new(float, 384).quantize(&TABLES)?;
    let indexes: Vec<u32> = (0..4_000).map(|i| i * 7919 % 300).collect();
    let indexes = Tensor::from_vec(indexes, (40, 100), CPU)?;
    let expected = quantized.embeddings().index_select(&indexes.flatten_all()?, 0)?;
    assert_eq!(values(&quantized.forward(&indexes)?), values(&expected));
    // Gradients flow through a float table.
    let table = Var::from_tensor(&table(3, 2))?;
    let layer = nn::Embedding::new(table.as_tensor().clone(), 2);
    let gradients = layer.forward(&Tensor::new(&[1u8, 1], CPU)?)?.sum_all()?.backward()?;
    let gradient = gradients.get(&table).expect("a gradient");
    assert_eq!(values(gradient), [0., 0., 2., 2., 0., 0.]);
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
            let parts = [&*format!("got {got}"), "300 rows"];
            let message = assert_fails(layer.forward(&indexes), &parts);
            assert!(message.starts_with("Embedding: "), "{message}");
        }
        // The largest u8 is an ordinary index.
        let row = layer.forward(&Tensor::new(&[255u8], CPU)?)?;
        assert_eq!(values(&row), values(&layer.embeddings().i(255)?));
        for indexes in [table(2, 2), Tensor::new(&[1i64], CPU)?.to_dtype(DType::F64)?] {
            assert_fails(layer.forward(&indexes), &["u8, u32 or i64"]);
        }
    }
    Ok(())
}

#[test]
fn tables_without_rows_or_columns() -> Result<()> {
    for (rows, size) in [(0, 3), (3, 0), (0, 0), (1, 1)] {
        let float = nn::Embedding::new(zeros(&[rows, size]), size);
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
        assert_fails(layer.forward(&Tensor::new(&[0u32], CPU)?), &["shape mismatch"]);
        assert_kind(layer.quantize(&TABLES), ErrorKind::ShapeMismatch, &[]);
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
        assert_kind(layer.quantize(&qconfig), ErrorKind::Unsupported, &["QConfig::table()"]);
    }
    let scheme = QScheme::PerChannelAffineFloatQParams;
    let mut config = ObserverConfig::new(ObserverKind::PerChannelMinMax, QDType::QInt8, scheme);
    let with = |config: &ObserverConfig| QConfig::Table(config.clone());
    assert_fails(layer.quantize(&with(&config)), &["expected quint8"]);
    config.dtype = QDType::QUInt8;
    config.ch_axis = 1;
    assert_fails(layer.quantize(&with(&config)), &["rows of the table"]);
    config.ch_axis = -2;
    layer.quantize(&with(&config))?;

    let quantized = layer.quantize(&TABLES)?;
    assert_fails(quantized.quantize(&TABLES), &["quantized already"]);
    // A table is looked up, a projection multiplies: each refuses the other's qconfig.
    let projection = nn::Linear::new(table(4, 4), None);
    assert_kind(projection.quantize(&TABLES), ErrorKind::Unsupported, &[]);
    Ok(())
}

#[test]
fn tables_that_are_not_finite_are_errors_that_name_the_element() -> Result<()> {
    for value in [f32::NAN, f32::INFINITY] {
        let tensor = Tensor::new(&[[1f32, 2.], [3., value]], CPU)?;
        for (qconfig, _) in qconfigs() {
            let error = QTable::from_float(&tensor, &qconfig);
            let message = assert_kind(error, ErrorKind::NonFinite, &[]);
            assert!(message.ends_with("at index [1, 1]"), "{message}");
        }
    }
    let wide = Tensor::new(&[[-3e38f32, 3e38]], CPU)?;
    assert_fails(QTable::from_float(&wide, &TABLES), &["invalid scale"]);
    Ok(())
}

#[test]
fn it_is_loaded_from_a_checkpoint_and_remembers_its_name() -> Result<()> {
    let layer = nn::embedding(10, 4, variables().pp("bert").pp("words"))?;
    assert_eq!(layer.embeddings().dims(), [10, 4]);
    assert_eq!(layer.hidden_size(), 4);
    assert_eq!(layer.checkpoint_name(), Some("bert.words"));
    let quantized = layer.quantize(&TABLES)?;
    assert_eq!(quantized.checkpoint_name(), Some("bert.words"));
    let message = assert_fails(quantized.forward(&Tensor::new(10u32, CPU)?), &[]);
    assert!(message.starts_with("bert.words: invalid index"), "{message}");
    Ok(())
}

/// A toy language model: an embedding, a layer, and a head that is the embedding's table.
#[derive(Quantizable, Clone)]
struct Model {
    embedding: nn::Embedding,
    hidden: nn::Linear,
    head: nn::Linear,
}

const VOCABULARY: usize = 70;
const SIZE: usize = 33;
const TABLE_BYTES: usize = 4 * VOCABULARY * SIZE;

fn model(has_bias: bool, dtype: DType) -> Model {
    let cast = |tensor: candle_core::Result<Tensor>| {
        tensor.and_then(|tensor| tensor.to_dtype(dtype)).expect("a tensor")
    };
    let embedding = nn::Embedding::new(cast(Ok(table(VOCABULARY, SIZE))), SIZE);
    let bias = has_bias.then(|| cast(Tensor::arange(0f32, VOCABULARY as f32, CPU)));
    let head = nn::Linear::tied(&embedding, bias);
    let hidden = nn::Linear::new(cast(Tensor::eye(SIZE, DType::F32, CPU)), None);
    Model { embedding, hidden, head }
}

impl Model {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden.forward(&self.embedding.forward(ids)?)?;
        Ok(self.head.forward(&hidden)?)
    }
}

fn float16() -> QConfigSpec {
    QConfigSpec::default_kinds(QConfig::float16())
}

fn swapped_to(to: QConfig) -> Outcome {
    Outcome::Swapped { to }
}

fn shared_with(path: &str) -> Outcome {
    Outcome::Shared { with: path.into() }
}

fn bytes(report: &Report, path: &str) -> (usize, usize) {
    let layer = layer_at(report, path);
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
    let cases = specs.iter().flat_map(|spec| [false, true].map(|bias| (spec, bias)));
    let dtypes = [DType::F32, DType::BF16];
    for ((spec, bias), dtype) in cases.flat_map(|case| dtypes.map(|dtype| (case, dtype))) {
        let case = format!("{spec}bias {bias}, {dtype:?}");
        let float = model(bias, dtype);
        let mut model = float.clone();
        let report = quantize_dynamic(&mut model, &spec.clone().embeddings())?;
        assert_eq!(layer_at(&report, "embedding").outcome, shared_with("head"), "{case}");
        assert_eq!(report.swapped().count(), 3, "{case}");

        // The head equals a head without the embedding, and counts the bytes of both.
        let mut alone = float.head.clone();
        let head_alone = quantize_dynamic(&mut alone, spec)?;
        assert_eq!(bytes(&report, "head"), bytes(&head_alone, ""), "{case}");
        assert_eq!(bytes(&report, "embedding"), (0, 0), "{case}");
        assert_eq!(model.embedding.weight_infos(), model.head.weight_infos(), "{case}");
        assert!(model.embedding.qtable().is_none(), "{case}");
        let codes = model.embedding.codes();
        assert_eq!(codes, model.head.projection().codes(), "{case}");
        assert_eq!(codes.is_some(), *spec != float16(), "{case}");

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

        // 1e-3 of the energy.
        assert_near(&float.forward(&ids())?, &model.forward(&ids())?, 30.);
        let last = Tensor::new(VOCABULARY as u32, CPU)?;
        assert_fails(model.embedding.forward(&last), &["below the 70 rows"]);
    }
    Ok(())
}

#[test]
fn the_order_of_the_fields_does_not_matter() -> Result<()> {
    let Model { embedding, hidden, head } = model(true, DType::F32);
    let mut first = model!(HeadFirst {
        head: nn::Linear = head,
        hidden: nn::Linear = hidden,
        embedding: nn::Embedding = embedding,
    });
    let mut last = model(true, DType::F32);
    let spec = QConfigSpec::int8().embeddings();
    let [a, b] = [quantize_dynamic(&mut first, &spec)?, quantize_dynamic(&mut last, &spec)?];
    for path in ["head", "embedding", "hidden"] {
        assert_eq!(layer_at(&a, path).outcome, layer_at(&b, path).outcome);
        assert_eq!(bytes(&a, path), bytes(&b, path));
    }
    let (a, b) = (first.embedding.forward(&ids())?, last.embedding.forward(&ids())?);
    assert_eq!(values(&a), values(&b));
    Ok(())
}

#[test]
fn the_report_says_who_shares() -> Result<()> {
    let mut model = model(false, DType::F32);
    let report = quantize_dynamic(&mut model, &QConfigSpec::int8().embeddings())?;
    let text = report.to_string();
    assert!(text.contains("shares the weight of head"), "{text}");
    assert!(!text.contains("stays in memory"), "{text}");
    let json = serde_json::to_value(&report).expect("JSON");
    let embedding = &json["layers"][0];
    assert_eq!(embedding["outcome"], "shared");
    assert_eq!((&embedding["with"], &embedding["tied_to"]), (&"head".into(), &"head".into()));
    assert_eq!(embedding["bytes_after"], 0);

    // A second call sees a single quantized weight.
    let spec = QConfigSpec::new().embeddings().name("head", QConfig::int8());
    let again = quantize_dynamic(&mut model, &spec)?;
    assert_eq!(again.swapped().count(), 0);
    let head_bytes = bytes(&report, "head").1;
    assert_eq!(bytes(&again, "head"), (head_bytes, head_bytes));
    assert_eq!(bytes(&again, "embedding"), (0, 0));
    assert_parts(&again.to_string(), &["embedding: its weight is counted with head"]);
    Ok(())
}

#[test]
fn a_float_tensor_that_stays_is_counted_where_it_stays() -> Result<()> {
    // Only the head: the embedding holds the float table still, so the model grows.
    let mut head_only = model(false, DType::F32);
    let report = quantize_dynamic(&mut head_only, &QConfigSpec::int8())?;
    let left = Outcome::Left { reason: LeftReason::OffByDefault { by: "embeddings" } };
    assert_eq!(layer_at(&report, "embedding").outcome, left);
    assert_eq!(bytes(&report, "embedding"), (TABLE_BYTES, TABLE_BYTES));
    let (before, after) = bytes(&report, "head");
    assert_eq!(before, 0);
    assert!((VOCABULARY * SIZE..TABLE_BYTES / 2).contains(&after), "{after}");
    assert_eq!(report.bytes_before(), 4 * SIZE * SIZE);
    let note = "head: its float weight stays in memory, because embedding still holds it";
    assert_parts(&report.to_string(), &[note]);

    // Only the embedding.
    let mut embedding_only = model(false, DType::F32);
    let report = quantize_dynamic(&mut embedding_only, &QConfigSpec::new().embeddings())?;
    assert_eq!(bytes(&report, "head"), (TABLE_BYTES, TABLE_BYTES));
    assert_eq!(bytes(&report, "embedding"), (0, VOCABULARY * (SIZE + 8)));
    assert_parts(&report.to_string(), &["embedding: its float weight stays"]);

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
    let report = quantize_dynamic(&mut model, &QConfigSpec::int8().embeddings())?;
    assert_eq!(layer_at(&report, "embedding").outcome, swapped_to(TABLES.eps(f32::MIN_POSITIVE)));
    assert_eq!(bytes(&report, "embedding").0, TABLE_BYTES);
    assert!(report.layers.iter().all(|layer| layer.tied_to.is_none()));
    Ok(())
}

#[test]
fn an_error_leaves_a_tied_model_as_it_was() -> Result<()> {
    let mut model = model(false, DType::F32);
    let ones = Tensor::ones((SIZE, SIZE), DType::F32, CPU)?;
    model.hidden = nn::Linear::new((ones * f64::NAN)?, None);
    let spec = QConfigSpec::int8().embeddings();
    let message = assert_fails(quantize_dynamic(&mut model, &spec), &[]);
    assert!(message.starts_with("hidden: "), "{message}");
    let infos = [model.embedding.weight_infos(), model.head.weight_infos()];
    assert!(infos.iter().flatten().all(|info| !info.quantized));
    // A qconfig that a table refuses is refused for a tied table too.
    let spec = QConfigSpec::int8().name("embedding", QConfig::int8());
    let mut model = self::model(false, DType::F32);
    let message = assert_fails(quantize_dynamic(&mut model, &spec), &[]);
    assert!(message.starts_with("embedding: unsupported qconfig"), "{message}");
    assert!(!model.head.weight_infos()[0].quantized);
    Ok(())
}

#[test]
fn embeddings_share_with_embeddings_that_are_quantized_alike() -> Result<()> {
    let mut models = vec![nn::Embedding::new(table(9, 6), 6); 3];
    let spec = QConfigSpec::new().embeddings().name("2", QConfig::float16());
    let report = quantize_dynamic(&mut models, &spec)?;
    assert_eq!(layer_at(&report, "0").outcome, swapped_to(TABLES.eps(f32::MIN_POSITIVE)));
    assert_eq!(layer_at(&report, "1").outcome, shared_with("0"));
    assert_eq!(layer_at(&report, "2").outcome, swapped_to(QConfig::float16()));
    assert_eq!(report.bytes_before(), 4 * 9 * 6);
    assert_eq!(report.bytes_after(), 9 * (6 + 8) + 2 * 9 * 6);
    let ids = Tensor::arange(0, 9u32, CPU)?;
    assert_eq!(values(&models[0].forward(&ids)?), values(&models[1].forward(&ids)?));
    Ok(())
}
