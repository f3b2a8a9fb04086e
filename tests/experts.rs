//! Mixtures of experts: results, bits, checkpoints, gradients, mistakes.

mod common;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_dynquant::{
    Checkpoint, FusedActivation, GptqConfig, Layer, LayerKind, LeftReason, Outcome, QConfig,
    QConfigSpec, Quantizable, checkpoint, gptq, nn, quantize_dynamic,
};
use candle_nn::{VarBuilder, VarMap};
use common::tensor;

const INPUTS: usize = 64;
const INNER: usize = 96;
const COUNT: usize = 19;

#[derive(Quantizable, Clone)]
struct Mixture {
    gate: nn::Router,
    experts: nn::Experts,
}

impl Mixture {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            gate: nn::router(INPUTS, COUNT, vb.pp("gate"))?,
            experts: nn::experts(COUNT, INPUTS, INNER, vb.pp("experts"))?,
        })
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let (chosen, weights) = self.gate.choose(xs, 4, true)?;
        self.experts.forward(xs, &chosen, &weights)
    }
}

/// The weights of a mixture by their names.
fn variables() -> Result<VarMap> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    Mixture::load(vb)?;
    let all = variables.data().lock().expect("variables");
    let mut names: Vec<_> = all.keys().collect();
    names.sort();
    for (i, name) in names.into_iter().enumerate() {
        all[name].set(&(tensor(all[name].dims(), i as u64)? * 0.05)?)?;
    }
    drop(all);
    Ok(variables)
}

fn mixture(variables: &VarMap) -> Result<Mixture> {
    let vb = VarBuilder::from_varmap(variables, DType::F32, &Device::Cpu);
    Ok(Mixture::load(vb)?)
}

/// The mixture of these weights without gates, by GELU.
fn plain(variables: &VarMap) -> Result<Mixture> {
    let vb = VarBuilder::from_varmap(variables, DType::F32, &Device::Cpu);
    let expert = |index| {
        let vb = vb.pp("experts").pp(index);
        let up = nn::linear_no_bias(INPUTS, INNER, vb.pp("up_proj"))?;
        let expert = nn::Expert::plain(up, nn::linear_no_bias(INNER, INPUTS, vb.pp("down_proj"))?);
        Ok(expert.with_activation(FusedActivation::Gelu))
    };
    let experts: Result<_> = (0..COUNT).map(expert).collect();
    Ok(Mixture { experts: nn::Experts::new(experts?), ..mixture(variables)? })
}

fn bits(xs: &Tensor) -> Result<Vec<u32>> {
    let values = xs.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

/// The greatest difference.
fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

/// Row by row, by the layers of each expert in f64, as transformers computes it.
fn expected(variables: &VarMap, xs: &Tensor, has_gates: bool) -> Result<Tensor> {
    let all = variables.data().lock().expect("variables");
    let weight = |name: &str| all[&format!("{name}.weight")].to_dtype(DType::F64);
    let mut rows = Vec::new();
    for row in 0..xs.dim(0)? {
        let x = xs.narrow(0, row, 1)?.to_dtype(DType::F64)?;
        let scores = x.matmul(&weight("gate")?.t()?)?.flatten_all()?;
        let shares = candle_nn::ops::softmax(&scores, 0)?.to_vec1::<f64>()?;
        let mut order: Vec<usize> = (0..COUNT).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        let total: f64 = order[..4].iter().map(|expert| shares[*expert]).sum();
        let mut sum = x.zeros_like()?;
        for expert in &order[..4] {
            let product = |x: &Tensor, name: &str| {
                x.matmul(&weight(&format!("experts.{expert}.{name}"))?.t()?)
            };
            let up = product(&x, "up_proj")?;
            let inner =
                if has_gates { (product(&x, "gate_proj")?.silu()? * up)? } else { up.gelu_erf()? };
            sum = (sum + (product(&inner, "down_proj")? * (shares[*expert] / total))?)?;
        }
        rows.push(sum);
    }
    Ok(Tensor::cat(&rows, 0)?.to_dtype(DType::F32)?)
}

fn presets() -> [QConfig; 6] {
    [
        QConfig::int8(),
        QConfig::int8_groups(),
        QConfig::int4(),
        QConfig::float16(),
        QConfig::bfloat16(),
        QConfig::int8().reduce_range(),
    ]
}

#[test]
fn results_are_those_of_each_expert() -> Result<()> {
    let variables = variables()?;
    let xs = tensor(&[37, INPUTS], 1)?;
    for (mut mixture, has_gates) in [(mixture(&variables)?, true), (plain(&variables)?, false)] {
        let expected = expected(&variables, &xs, has_gates)?;
        let scale = expected.abs()?.max_all()?.to_scalar::<f32>()?;
        let error = difference(&mixture.forward(&xs)?, &expected)?;
        assert!(error < 2e-6 * scale, "{error} {scale}");
        let report = quantize_dynamic(&mut mixture, &QConfigSpec::int8())?;
        assert_eq!(report.swapped().count(), COUNT * (2 + usize::from(has_gates)));
        let router = report.layers.iter().find(|layer| layer.path == "gate");
        let outcome = &router.expect("a router").outcome;
        let no_rule = LeftReason::NoRule;
        assert!(matches!(outcome, Outcome::Left { reason } if *reason == no_rule));
        let error = difference(&mixture.forward(&xs)?, &expected)?;
        assert!(error < 0.02 * scale, "{error} {scale}");
    }
    Ok(())
}

#[test]
fn a_row_has_the_bits_that_it_has_alone() -> Result<()> {
    let variables = variables()?;
    for dtype in [DType::F32, DType::BF16] {
        let xs = tensor(&[3, 23, INPUTS], 2)?.to_dtype(dtype)?;
        for (qconfig, load) in presets()
            .into_iter()
            .flat_map(|it| [(it.clone(), mixture as fn(&VarMap) -> _), (it, plain)])
        {
            let mut mixture = load(&variables)?;
            quantize_dynamic(
                &mut mixture,
                &QConfigSpec::new().kind(LayerKind::Linear, qconfig.clone()),
            )?;
            let all = mixture.forward(&xs)?;
            assert_eq!((all.dims(), all.dtype()), (xs.dims(), dtype));
            for row in 0..23 {
                let alone = mixture.forward(&xs.narrow(1, row, 1)?)?;
                let among = all.narrow(1, row, 1)?;
                assert_eq!(bits(&alone)?, bits(&among)?, "{qconfig} row {row}");
            }
            let one = mixture.forward(&xs.narrow(0, 1, 1)?.narrow(1, 5, 1)?)?;
            let among = all.narrow(0, 1, 1)?.narrow(1, 5, 1)?;
            assert_eq!(bits(&one)?, bits(&among)?, "{qconfig}");
        }
    }
    Ok(())
}

/// Experts that are not quantized alike are computed one by one, with the same bits.
#[test]
fn experts_of_several_formats_have_the_bits_of_each() -> Result<()> {
    let variables = variables()?;
    let xs = tensor(&[11, INPUTS], 3)?;
    let ones = Tensor::ones((11, 1), DType::F32, &Device::Cpu)?;
    let rows_of = |expert: u32| Tensor::full(expert, (11, 1), &Device::Cpu);
    let mut alike = mixture(&variables)?;
    quantize_dynamic(&mut alike, &QConfigSpec::int8())?;
    let mut mixed = mixture(&variables)?;
    let spec = QConfigSpec::int8().name("experts.7.up_proj", QConfig::int4());
    quantize_dynamic(&mut mixed, &spec)?;
    for expert in [0, 6, 18] {
        let expected = alike.experts.forward(&xs, &rows_of(expert)?, &ones)?;
        let chosen = Tensor::cat(&[rows_of(expert)?, rows_of(7)?], 1)?;
        let weights = Tensor::cat(&[&ones, &ones.zeros_like()?], 1)?;
        let got = mixed.experts.forward(&xs, &chosen, &weights)?;
        assert_eq!(bits(&got)?, bits(&expected)?, "{expert}");
    }
    Ok(())
}

/// A row may choose an expert twice, and features may be none.
#[test]
fn rows_of_equal_experts_and_no_features_are_computed() -> Result<()> {
    let mut mixture = mixture(&variables()?)?;
    let xs = tensor(&[2, INPUTS], 9)?;
    let chosen = Tensor::new(&[[3u32, 3], [5, 6]], &Device::Cpu)?;
    let weights = Tensor::new(&[[0.25f32, 0.5], [1., 0.]], &Device::Cpu)?;
    let run = |model: &Mixture| model.experts.forward(&xs, &chosen, &weights);
    let float = run(&mixture)?;
    quantize_dynamic(&mut mixture, &QConfigSpec::int8())?;
    let error = difference(&run(&mixture)?, &float)?;
    assert!(error < 0.03 * float.abs()?.max_all()?.to_scalar::<f32>()?, "{error}");
    for [inputs, inner, outputs] in [[0, 4, 3], [4, 0, 3], [4, 3, 0]] {
        let linear = |out: usize, inputs: usize| {
            let weight = Tensor::ones((out, inputs), DType::F32, &Device::Cpu)?;
            Ok::<_, anyhow::Error>(nn::Linear::new(weight, None).quantize(&QConfig::int8())?)
        };
        let [gate, up] = [linear(inner, inputs)?, linear(inner, inputs)?];
        let expert = nn::Expert::new(gate, up, linear(outputs, inner)?);
        let experts = nn::Experts::new(vec![expert; 7]);
        let ys = experts.forward(&xs.narrow(1, 0, inputs)?, &chosen, &weights)?;
        assert_eq!(ys.dims(), [2, outputs]);
    }
    Ok(())
}

#[test]
fn stacked_weights_are_those_of_separate_experts() -> Result<()> {
    let variables = variables()?;
    let stacked = |names: &[&str]| -> Result<Tensor> {
        let all = variables.data().lock().expect("variables");
        let weight =
            |expert, name| all[&format!("experts.{expert}.{name}.weight")].as_tensor().clone();
        let expert = |expert| {
            let weights: Vec<_> = names.iter().map(|name| weight(expert, name)).collect();
            Tensor::cat(&weights, 0)
        };
        let all: Vec<_> = (0..COUNT).map(expert).collect::<candle_core::Result<_>>()?;
        Ok(Tensor::stack(&all, 0)?)
    };
    let both = stacked(&["gate_proj", "up_proj"])?;
    let down = stacked(&["down_proj"])?;
    let xs = tensor(&[9, INPUTS], 4)?;
    let separate = mixture(&variables)?;
    let (chosen, weights) = separate.gate.choose(&xs, 3, false)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.safetensors");
    let tensors = [("gate_up_proj", &both), ("down_proj", &down)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    candle_core::safetensors::save(&tensors.into(), &file)?;
    for qconfig in presets() {
        let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig.clone());
        let mut separate = separate.experts.clone();
        quantize_dynamic(&mut separate, &spec)?;
        let expected = bits(&separate.forward(&xs, &chosen, &weights)?)?;
        let load = |checkpoint: &Checkpoint| {
            let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
            let both = vb.get(both.dims(), "gate_up_proj")?;
            nn::Experts::stacked(&both, &vb.get(down.dims(), "down_proj")?)
        };
        let source = Checkpoint::open(&file)?;
        let mut model = load(&source)?;
        quantize_dynamic(&mut model, &spec)?;
        let got = model.forward(&xs, &chosen, &weights)?;
        assert_eq!(bits(&got)?, expected, "{qconfig}");
        let quantized = folder.path().join("quantized.safetensors");
        checkpoint::save(&model, &source, &quantized)?;
        let model = load(&Checkpoint::open(&quantized)?)?;
        let got = model.forward(&xs, &chosen, &weights)?;
        assert_eq!(bits(&got)?, expected, "{qconfig} loaded");
        std::fs::remove_file(quantized)?;
    }
    Ok(())
}

#[test]
fn scores_have_the_same_bits_in_any_batch_and_equal_ones_are_in_order() -> Result<()> {
    let mixture = mixture(&variables()?)?;
    let xs = tensor(&[70, INPUTS], 5)?;
    let all = mixture.gate.forward(&xs)?;
    for (first, rows) in [(0, 1), (3, 2), (11, 7), (20, 33)] {
        let part = mixture.gate.forward(&xs.narrow(0, first, rows)?)?;
        assert_eq!(bits(&part)?, bits(&all.narrow(0, first, rows)?)?);
    }
    let equal = nn::Router::new(Tensor::zeros((5, 8), DType::F32, &Device::Cpu)?);
    let (chosen, weights) = equal.choose(&Tensor::ones(8, DType::F32, &Device::Cpu)?, 3, false)?;
    assert_eq!(chosen.to_vec1::<u32>()?, [0, 1, 2]);
    assert_eq!(weights.to_vec1::<f32>()?, [0.2; 3]);
    Ok(())
}

#[test]
fn gradients_flow_through_float_experts_and_end_at_quantized_ones() -> Result<()> {
    let variables = variables()?;
    let mut experts = mixture(&variables)?.experts;
    let xs = Var::from_tensor(&tensor(&[5, INPUTS], 6)?)?;
    let chosen = Tensor::full(2u32, (5, 1), &Device::Cpu)?;
    let weights = Tensor::ones((5, 1), DType::F32, &Device::Cpu)?;
    let run = |experts: &nn::Experts| experts.forward(xs.as_tensor(), &chosen, &weights)?.sum_all();
    let gradients = run(&experts)?.backward()?;
    let all = variables.data().lock().expect("variables");
    for tensor in [&xs, &all["experts.2.up_proj.weight"]] {
        assert!(gradients.get(tensor).is_some());
    }
    assert!(gradients.get(&all["experts.3.up_proj.weight"]).is_none());
    drop(all);
    quantize_dynamic(&mut experts, &QConfigSpec::int8())?;
    let error = run(&experts)?.backward().map(drop).unwrap_err().to_string();
    assert!(error.contains("a layer quantized by candle-dynquant"), "{error}");
    Ok(())
}

/// Experts that no row chose are rounded.
#[test]
fn gptq_quantizes_the_experts_that_have_inputs_by_them() -> Result<()> {
    let mut mixture = mixture(&variables()?)?;
    let xs = tensor(&[90, INPUTS], 8)?;
    let spec = QConfigSpec::new().kind(LayerKind::Linear, QConfig::int4());
    let (chosen, weights) = mixture.gate.choose(&xs, 4, true)?;
    // The last expert has no rows.
    let chosen = chosen.to_vec2::<u32>()?.concat().into_iter().map(|expert| expert.min(17));
    let chosen = Tensor::from_iter(chosen, &Device::Cpu)?.reshape((90, 4))?;
    let run = |model: &Mixture| model.experts.forward(&xs, &chosen, &weights);
    let float = run(&mixture)?;
    let mut rounded = mixture.clone();
    quantize_dynamic(&mut rounded, &spec)?;
    let report = gptq(&mut mixture, &GptqConfig::new(spec), run)?;
    assert_eq!(report.rounded.len(), 3, "{:?}", report.rounded);
    let error =
        |model| -> Result<f32> { Ok((run(model)? - &float)?.sqr()?.mean_all()?.to_scalar()?) };
    assert!(error(&mixture)? < 0.8 * error(&rounded)?);
    Ok(())
}

#[test]
fn mistakes_are_errors() -> Result<()> {
    let mixture = mixture(&variables()?)?;
    let xs = tensor(&[2, INPUTS], 7)?;
    let ones = |shape: (usize, usize)| Tensor::ones(shape, DType::F32, &Device::Cpu);
    let chosen = |expert: u32, shape: (usize, usize)| Tensor::full(expert, shape, &Device::Cpu);
    let run = |xs: &Tensor, chosen: Tensor, weights: Tensor| {
        let error = mixture.experts.forward(xs, &chosen, &weights).unwrap_err();
        error.to_string()
    };
    let float = ones((2, 1))?;
    for (error, part) in [
        (run(&xs, chosen(19, (2, 1))?, ones((2, 1))?), "expected one of 19"),
        (run(&xs, chosen(1, (3, 1))?, ones((3, 1))?), "[3, 1]"),
        (run(&xs, chosen(1, (2, 1))?, ones((2, 2))?), "[2, 2]"),
        (run(&xs, float.clone(), float.clone()), "u32"),
        (run(&xs.narrow(1, 0, 60)?, chosen(1, (2, 1))?, ones((2, 1))?), "[2, 60]"),
        (mixture.gate.choose(&xs, 20, true).unwrap_err().to_string(), "at most 19"),
        (mixture.gate.forward(&xs.narrow(1, 0, 60)?).unwrap_err().to_string(), "[2, 60]"),
        (run(&Tensor::new(1f32, &Device::Cpu)?, chosen(1, (2, 1))?, ones((2, 1))?), "experts"),
    ] {
        assert!(error.contains(part), "{error}");
    }
    let none = nn::Experts::new(Vec::new());
    assert!(none.forward(&xs, &chosen(0, (2, 0))?, &ones((2, 0))?).is_err());
    // No expert for a row.
    let ys = mixture.experts.forward(&xs, &chosen(0, (2, 0))?, &ones((2, 0))?)?;
    assert_eq!(bits(&ys)?, [0; 2 * INPUTS]);
    // No rows.
    let ys = mixture.forward(&Tensor::zeros((0, INPUTS), DType::F32, &Device::Cpu)?)?;
    assert_eq!(ys.dims(), [0, INPUTS]);
    let linear = |out, inputs| {
        Ok::<_, candle_core::Error>(nn::Linear::new(
            Tensor::zeros((out, inputs), DType::F32, &Device::Cpu)?,
            None,
        ))
    };
    let unequal = nn::Expert::new(linear(4, INPUTS)?, linear(5, INPUTS)?, linear(INPUTS, 4)?);
    let unequal = nn::Experts::new(vec![unequal.with_activation(FusedActivation::Gelu)]);
    let error = unequal.forward(&xs, &chosen(0, (2, 1))?, &ones((2, 1))?);
    assert!(error.unwrap_err().to_string().contains("[5, 64"));
    let [both, down] =
        [(2, 7, 4), (2, 4, 3)].map(|shape| Tensor::zeros(shape, DType::F32, &Device::Cpu));
    assert!(nn::Experts::stacked(&both?, &down?).is_err());
    Ok(())
}
