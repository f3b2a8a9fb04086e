//! Recurrent layers whose weights come from layers that are quantized otherwise.

use candle_dynquant::nn::RecurrentConfig;

use crate::kit::*;

const INPUT: usize = 5;
const HIDDEN: usize = 8;

fn lstm(vb: VarBuilder<'_>) -> Result<nn::LSTM> {
    let config = RecurrentConfig { bidirectional: true, ..Default::default() };
    Ok(nn::LSTM::new(INPUT, HIDDEN, config, vb)?)
}

/// Numbers within +-1, the same in every run: the bound below holds for these.
fn numbers(shape: &[usize], seed: &mut u64) -> Result<Tensor> {
    let value = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.
    };
    let numbers: Vec<f32> = std::iter::repeat_with(value).take(shape.iter().product()).collect();
    Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?)
}

#[test]
fn each_direction_may_be_quantized_otherwise() -> Result<()> {
    let (_dir, [float, out]) = paths(["float", "out"]);
    let (mut tensors, mut seed) = (HashMap::new(), 1);
    let shapes: [(&str, &[usize]); 4] = [
        ("weight_ih", &[4 * HIDDEN, INPUT]),
        ("weight_hh", &[4 * HIDDEN, HIDDEN]),
        ("bias_ih", &[4 * HIDDEN]),
        ("bias_hh", &[4 * HIDDEN]),
    ];
    for (name, shape) in shapes {
        for end in ["l0", "l0_reverse"] {
            let tensor = (numbers(shape, &mut seed)? * 0.6)?;
            for layer in ["a", "b"] {
                tensors.insert(format!("{layer}.{name}_{end}"), tensor.copy()?);
            }
        }
    }
    candle_core::safetensors::save(&tensors, &float)?;
    let source = Checkpoint::open(&float)?;
    let load = |name: &str| Ok((name.to_owned(), lstm(vb_of(&source).pp(name))?));
    let mut both = ["a", "b"].into_iter().map(load).collect::<Result<HashMap<_, _>>>()?;
    let spec = all_int8().name("b", QConfig::float16());
    save_quantized(&mut both, &spec, &source, &out)?;

    let vb = open(&out)?;
    let xs = (numbers(&[7, 2, INPUT], &mut seed)? * 2.)?;
    let half = |ys: &Tensor, direction: usize| -> Result<Vec<f32>> {
        Ok(values(&ys.narrow(2, direction * HIDDEN, HIDDEN)?))
    };
    let [a, b] = ["a", "b"].map(|name| both[name].forward(&xs, None));
    let ((a, _), (b, _)) = (a?, b?);
    /// A layer whose weights come from `b` where their names have this part, otherwise from `a`.
    fn mixed(vb: &VarBuilder<'static>, of_b: &'static str) -> Result<nn::LSTM> {
        let vb = vb.clone().rename_f(move |name| {
            name.replace("mixed", if name.contains(of_b) { "b" } else { "a" })
        });
        lstm(vb.pp("mixed"))
    }
    let (ys, _) = mixed(&vb, "_reverse")?.forward(&xs, None)?;
    assert_eq!(half(&ys, 0)?, half(&a, 0)?);
    assert_eq!(half(&ys, 1)?, half(&b, 1)?);

    // The input and the state of one direction also mix.
    let (ys, _) = mixed(&vb, "_hh_")?.forward(&xs, None)?;
    for (name, alone) in [("int8", a), ("float16", b)] {
        let error = (&ys - alone)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!((1e-7..0.02).contains(&error), "{name}: {error}");
    }
    Ok(())
}
