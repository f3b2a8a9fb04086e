//! Real layers: tied, shared and recurrent layers, saved models, and the same search on any number
//! of threads.

use std::sync::Arc;
use std::time::Duration;

use candle_dynquant::tune::{LayerPrecision, Strategy, Trial};
use candle_dynquant::{Replay, Result};

use crate::common::{lstm, tensor};
use crate::kit::*;

fn linear(rows: usize, columns: usize, seed: u64) -> Result<nn::Linear> {
    let weight = (tensor(&[rows, columns], seed)? * 0.1)?;
    // An outlier makes one of the layers worse than the others.
    let weight = match seed % 3 {
        0 => (weight.sqr()? * 3.)?,
        _ => weight,
    };
    Ok(nn::Linear::new(weight, None))
}

/// SQNR in dB, of which float has 100.
fn sqnr(expected: &Tensor, got: &Tensor) -> Result<f64> {
    let energy = |t: &Tensor| t.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
    let noise = energy(&(expected - got)?)?;
    Ok((10. * (energy(expected)? / noise).log10()).min(100.))
}

#[derive(Quantizable, Clone)]
struct Deep {
    first: Arc<nn::Linear>,
    inner: Vec<nn::Linear>,
    lstm: nn::LSTM,
    /// The first layer again.
    last: Arc<nn::Linear>,
}

impl Deep {
    fn new() -> Result<Self> {
        let first = Arc::new(linear(24, 24, 1)?);
        let inner = (2..10).map(|seed| linear(24, 24, seed)).collect::<Result<_>>()?;
        let last = Arc::clone(&first);
        Ok(Self { first, inner, lstm: lstm(24, 24)?, last })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut hidden = self.first.forward(xs)?;
        for layer in &self.inner {
            hidden = (&hidden + layer.forward(&hidden)?.tanh()?)?;
        }
        let sequence = self.lstm.forward(&hidden.unsqueeze(0)?, None)?.0;
        Ok(self.last.forward(&sequence.squeeze(0)?)?)
    }
}

/// The results that must not depend on threads.
fn of(outcome: &TuningOutcome) -> (Vec<Trial>, Option<usize>, Vec<Option<u64>>) {
    let mut trials = outcome.trials.clone();
    trials.iter_mut().for_each(|trial| trial.seconds = 0.);
    let ranking = outcome.layers.iter().map(|layer| layer.sqnr_db.map(f64::to_bits));
    (trials, crate::model::best_trial(outcome), ranking.collect())
}

#[test]
fn the_same_search_on_any_number_of_threads() -> Result<()> {
    let float = Deep::new()?;
    let xs = tensor(&[12, 24], 77)?;
    for strategy in [Strategy::Basic, Strategy::Sensitivity, Strategy::ByKind] {
        let search = || -> Result<_> {
            let mut model = float.clone();
            let expected = model.forward(&xs)?;
            let eval = |model: &Deep| sqnr(&expected, &model.forward(&xs)?);
            let config = crate::config().strategy(strategy).absolute(60.);
            let outcome = tune(&mut model, &config, eval)?;
            Ok((of(&outcome), model.forward(&xs)?.to_vec2::<f32>()?))
        };
        let expected = search()?;
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let got = pool.expect("a pool").install(search)?;
            assert!(got == expected, "{strategy} on {threads} threads");
        }
    }
    Ok(())
}

#[test]
fn layers_are_ranked_by_what_quantizing_them_does() -> Result<()> {
    let mut model = Deep::new()?;
    let xs = tensor(&[12, 24], 77)?;
    let expected = model.forward(&xs)?;
    let eval = |model: &Deep| sqnr(&expected, &model.forward(&xs)?);
    let hour = Duration::from_secs(3600);
    let outcome = tune(&mut model, &crate::config().absolute(62.).timeout(hour), eval)?;
    assert!(outcome.met && eval(&model)? >= 38.);
    // A shared layer counts once.
    assert_eq!(outcome.layers.len(), 10);
    let ranked = outcome.layers.iter().map(|layer| layer.sqnr_db.expect("measured"));
    assert!(ranked.into_iter().all(|db| (25. ..70.).contains(&db)));
    let fallen = outcome.layers.iter().filter(|l| l.precision != LayerPrecision::Int8).count();
    assert!((1..10).contains(&fallen), "{outcome}");
    assert!(Arc::ptr_eq(&model.first, &model.last));
    Ok(())
}

#[test]
fn float_is_what_it_was_after_any_number_of_trials() -> Result<()> {
    let mut model = Deep::new()?;
    let xs = tensor(&[12, 24], 77)?;
    let expected = model.forward(&xs)?;
    let eval = |model: &Deep| sqnr(&expected, &model.forward(&xs)?);
    for strategy in [Strategy::Basic, Strategy::Sensitivity, Strategy::ByKind] {
        let config = crate::config().strategy(strategy).absolute(0.);
        let outcome = tune(&mut model, &config, eval)?;
        assert!(outcome.met);
        assert!(outcome.layers.iter().all(|layer| layer.precision == LayerPrecision::Float));
        assert_eq!(model.forward(&xs)?.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
    }
    Ok(())
}

#[derive(Quantizable, Clone)]
struct Tied {
    words: nn::Embedding,
    inner: nn::Linear,
    head: nn::Linear,
}

impl Tied {
    fn load(vb: &VarBuilder<'_>) -> candle_core::Result<Self> {
        let words = nn::embedding(32, 16, vb.pp("words"))?;
        let head = nn::Linear::tied(&words, None);
        let inner = nn::linear_no_bias(16, 16, vb.pp("inner"))?;
        Ok(Self { words, inner, head })
    }

    fn source() -> Result<Source> {
        let (words, inner) = (tensor(&[32, 16], 1)?, tensor(&[16, 16], 2)?);
        Source::of([("words.weight", words), ("inner.weight", inner)])
    }

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.head.forward(&self.inner.forward(&self.words.forward(ids)?)?)?)
    }
}

/// From 4 bits, the layers that lose most fall back to 8 bits: a smaller mix than all in 8.
#[test]
fn of_4_bits_some_layers_fall_back_to_8() -> Result<()> {
    let mut model = Deep::new()?;
    let xs = tensor(&[9, 24], 3)?;
    let expected = model.forward(&xs)?;
    let eval = |model: &Deep| sqnr(&expected, &model.forward(&xs)?);
    let quantized = |spec: QConfigSpec| {
        let mut model = model.clone();
        quantize_dynamic(&mut model, &spec.min_params(0))?;
        eval(&model)
    };
    let (best, worst) = (quantized(QConfigSpec::int8())?, quantized(QConfigSpec::int4())?);
    let goal = worst + 1.;
    assert!(best > goal + 3.);
    let config = crate::config().absolute(100. - goal).spec(QConfigSpec::int4().min_params(0));
    let outcome = tune(&mut model, &config, eval)?;
    assert!(outcome.met, "{outcome}");
    let count = |precision| {
        let layers = outcome.layers.iter();
        layers.filter(|layer| layer.precision == precision).count()
    };
    let [four, eight] = [LayerPrecision::Int4, LayerPrecision::Int8].map(count);
    assert!(four > 0 && eight > 0, "{outcome}");
    assert!(outcome.to_string().contains("INT4"), "{outcome}");
    Ok(())
}

/// A table and its tied head change together, and so can be saved.
#[test]
fn tied_layers_fall_back_together_and_are_saved() -> Result<()> {
    let source = Tied::source()?;
    let ids = Tensor::arange(0u32, 32, &Device::Cpu)?;
    for (goal, tied) in
        [(80., LayerPrecision::Int8), (50., LayerPrecision::Float16), (0., LayerPrecision::Float)]
    {
        let mut model = Tied::load(&source.vb)?;
        let expected = model.forward(&ids)?;
        let eval = |model: &Tied| sqnr(&expected, &model.forward(&ids)?);
        let config = crate::config().absolute(goal).spec(all_int8().embeddings());
        let outcome = tune(&mut model, &config, eval)?;
        assert!(outcome.met);
        let [words, _, head] = &outcome.layers[..] else { panic!("{outcome}") };
        assert_eq!((words.precision, head.precision), (tied, tied), "{outcome}");
        let best = eval(&model)?;
        assert_eq!(best, outcome.best().expect("a trial").value);
        if tied != LayerPrecision::Float {
            source.save(&model)?;
            assert_eq!(eval(&Tied::load(&source.saved_vb()?)?)?, best);
        }
    }
    Ok(())
}

/// All trials of layers that change together.
#[test]
fn tied_layers_have_the_precisions_that_both_have() -> Result<()> {
    let mut model = Tied::load(&Tied::source()?.vb)?;
    let ids = Tensor::arange(0u32, 32, &Device::Cpu)?;
    let expected = model.forward(&ids)?;
    let eval = |model: &Tied| sqnr(&expected, &model.forward(&ids)?);
    // A table is never multiplied, so it has no precision for rows of activations.
    let config = crate::config()
        .strategy(Strategy::Basic)
        .absolute(0.)
        .spec(QConfigSpec::pytorch().embeddings());
    let outcome = tune(&mut model, &config, eval)?;
    let of = |trial: &Trial, path: &str| {
        let mut layers = trial.layers.iter();
        let found = layers.find(|(_, paths)| paths.iter().any(|own| own == path));
        found.map(|(precision, _)| *precision).expect("a layer")
    };
    let mut inner = Vec::new();
    for trial in &outcome.trials {
        let [words, head] = ["words", "head"].map(|path| of(trial, path));
        assert!(words == head && head != LayerPrecision::Int8PerRow, "{trial}");
        inner.push((of(trial, "inner"), head));
    }
    assert!(inner.iter().any(|(inner, head)| inner != head));
    assert!(inner.iter().any(|(inner, _)| *inner == LayerPrecision::Int8PerRow));
    Ok(())
}

/// A layer by the rows and channels of its output, and by its noise when quantized.
#[derive(Quantizable, Clone)]
#[quantizable(layer)]
struct Noisy {
    rows: usize,
    channels: usize,
    sqnr_db: f64,
    is_quantized: bool,
    tap: Option<Tap>,
}

impl Noisy {
    fn forward(&self) -> Result<Tensor> {
        let noise = if self.is_quantized { 10f64.powf(-self.sqnr_db / 20.) } else { 0. };
        let ones = Tensor::ones((self.rows, self.channels), DType::F32, &Device::Cpu)?;
        let ys = (ones + noise)?;
        if let Some(tap) = &self.tap {
            tap.report(&[], &ys);
        }
        Ok(ys)
    }
}

impl Layer for Noisy {
    fn kind(&self) -> LayerKind {
        LayerKind::Linear
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        let info = WeightInfo::new("weight", &[self.channels, 1], WeightDType::F32, 4);
        vec![if self.is_quantized { info.quantized(0) } else { info }]
    }

    fn quantize(&self, _: &QConfig) -> Result<Self> {
        let (is_quantized, tap) = (true, None);
        Ok(Self { is_quantized, tap, ..*self })
    }

    fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.tap = tap;
        true
    }

    fn replay(&self) -> Option<Replay> {
        let own = self.clone();
        Some(Arc::new(move |_| own.forward()))
    }
}

#[test]
fn noise_in_many_rows_counts_for_less() -> Result<()> {
    // Rows, channels and dB; ten times the rows are worth 10 dB.
    for [first, second] in [[(100, 1, 40.), (1, 100, 45.)], [(10, 1, 70.), (100, 1, 40.)]] {
        let noisy = |(rows, channels, sqnr_db)| Noisy {
            rows,
            channels,
            sqnr_db,
            is_quantized: false,
            tap: None,
        };
        let mut model = vec![noisy(first), noisy(second)];
        let eval = |model: &Vec<Noisy>| -> Result<f64> {
            for layer in model {
                layer.forward()?;
            }
            Ok(f64::from(model.iter().all(|layer| !layer.is_quantized)))
        };
        let config = crate::config().strategy(Strategy::Sensitivity);
        let outcome = tune(&mut model, &config, eval)?;
        // After the trial with all in int8, the worst layer falls back alone.
        assert_eq!(outcome.trials[1].layers[&LayerPrecision::Float16], ["1"]);
    }
    Ok(())
}
