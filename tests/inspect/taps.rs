//! Layers report their forward calls to taps, and compute the same by themselves.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use candle_dynquant::{Receiver, Result, Visitor, VisitorMut, Walk, WalkMut};
use candle_nn::RNN as _;

use crate::kit::*;

type Seen = Arc<Mutex<Vec<(Vec<Tensor>, Tensor)>>>;

/// A receiver that keeps everything.
fn keep() -> (Arc<Receiver>, Seen) {
    let seen = Seen::default();
    let own = Arc::clone(&seen);
    let receiver: Arc<Receiver> = Arc::new(move |inputs: &[&Tensor], output: &Tensor| {
        let inputs = inputs.iter().map(|input| (*input).clone()).collect();
        own.lock().unwrap().push((inputs, output.clone()));
    });
    (receiver, seen)
}

/// Runs `call` on the layer, float and quantized: it is reported `calls` times, and the layer
/// reproduces each report.
fn check<L: Layer + Clone>(layer: &L, qconfig: &QConfig, calls: usize, call: impl Fn(&L)) {
    for mut layer in [layer.clone(), layer.quantize(qconfig).unwrap()] {
        let (receiver, seen) = keep();
        assert!(layer.attach(Some(Tap::to(&receiver))));
        call(&layer);
        let replay = layer.replay().expect("a layer that reports");
        let reports = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(reports.len(), calls, "{}", layer.kind());
        for (inputs, output) in &reports {
            let inputs: Vec<_> = inputs.iter().collect();
            let again = replay(&inputs).unwrap();
            assert_eq!(bits(&again), bits(output), "{}", layer.kind());
        }
        assert!(seen.lock().unwrap().is_empty(), "a replay is no forward");
        assert!(replay(&[]).is_err());

        // Neither the quantized layer nor a layer without its tap reports anything.
        if let Ok(quantized) = layer.quantize(qconfig) {
            call(&quantized);
        }
        let clone = layer.clone();
        layer.attach(None);
        call(&layer);
        assert!(seen.lock().unwrap().is_empty());
        // A remaining clone reports while a receiver lives.
        call(&clone);
        assert_eq!(seen.lock().unwrap().len(), calls);
        drop(receiver);
        call(&clone);
        assert_eq!(seen.lock().unwrap().len(), calls);
    }
}

#[test]
fn every_layer_reports_and_computes_the_same_again() {
    let int8 = &QConfig::int8();
    let linear = nn::Linear::new(random(&[8, 6]), Some(random(&[8])));
    check(&linear, int8, 1, |layer| {
        layer.forward(&random(&[2, 3, 6])).unwrap();
    });
    check(&linear, int8, 3, |layer| {
        nn::Linear::forward_each([layer, layer, layer], &random(&[5, 6])).unwrap();
    });
    let table = nn::Embedding::new(random(&[10, 4]), 4);
    check(&table, &QConfig::table(), 1, |layer| {
        layer.forward(&Tensor::new(&[[3u32, 9], [0, 3]], &Device::Cpu).unwrap()).unwrap();
    });
}

#[test]
fn recurrent_layers_report_sequences_and_cells_steps() {
    let vb = new_vb();
    let int8 = &QConfig::int8();
    for batch_first in [false, true] {
        let config = nn::RecurrentConfig {
            num_layers: 2,
            bidirectional: true,
            batch_first,
            ..Default::default()
        };
        let xs = || random(&[4, 4, 6]);
        let lstm = nn::LSTM::new(6, 5, config, vb.pp("lstm")).unwrap();
        check(&lstm, int8, 3, |lstm| {
            let (_, state) = lstm.forward(&xs(), None).unwrap();
            lstm.forward(&xs(), Some(&state)).unwrap();
            lstm.forward_lengths(&xs(), &[1, 4, 0, 2], None).unwrap();
        });
        let gru = nn::GRU::new(6, 5, config, vb.pp("gru")).unwrap();
        check(&gru, int8, 3, |gru| {
            let (_, h) = gru.forward(&xs(), None).unwrap();
            gru.forward(&xs(), Some(&h)).unwrap();
            gru.forward_lengths(&xs(), &[1, 4, 0, 2], Some(&h)).unwrap();
        });
        let single = nn::RecurrentConfig { batch_first, ..Default::default() };
        let single = nn::LSTM::new(6, 5, single, vb.pp("single")).unwrap();
        check(&single, int8, 1, |lstm| {
            lstm.seq(&random(&[2, 3, 6])).unwrap();
        });
    }
    let (lstm, gru) = (vb.pp("lstm_cell"), vb.pp("gru_cell"));
    check(&nn::LSTMCell::new(6, 5, true, lstm).unwrap(), int8, 2, |cell| {
        let state = cell.forward(&random(&[3, 6]), None).unwrap();
        cell.forward(&random(&[3, 6]), Some(&state)).unwrap();
    });
    check(&nn::GRUCell::new(6, 5, true, gru).unwrap(), int8, 2, |cell| {
        let h = cell.forward(&random(&[3, 6]), None).unwrap();
        cell.forward(&random(&[3, 6]), Some(&h)).unwrap();
    });
}

/// A layer that reports nothing.
#[derive(Quantizable, Clone)]
#[quantizable(layer)]
struct Own {
    projection: nn::Projection,
}

impl Layer for Own {
    fn kind(&self) -> LayerKind {
        LayerKind::custom("Own")
    }
    fn weight_infos(&self) -> Vec<WeightInfo> {
        vec![self.projection.info("weight")]
    }
    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        Ok(Self { projection: self.projection.quantize(qconfig)? })
    }
}

#[derive(Quantizable, Clone)]
struct Model {
    first: nn::Linear,
    shared: [Arc<nn::Linear>; 2],
    unused: nn::Linear,
    own: Own,
}

impl Model {
    fn new() -> Self {
        let linear = || nn::Linear::new(random(&[16, 16]), None);
        let shared = Arc::new(linear());
        Self {
            first: linear(),
            shared: [Arc::clone(&shared), shared],
            unused: linear(),
            own: Own { projection: nn::Projection::new(random(&[16, 16]), None) },
        }
    }

    fn forward(&self, xs: &Tensor) -> Tensor {
        let xs = self.first.forward(xs).unwrap();
        let xs = self.shared[0].forward(&xs).unwrap();
        let xs = self.shared[1].forward(&xs).unwrap();
        self.own.projection.forward(&xs).unwrap()
    }

    /// Whether a layer of the tree has a tap, by its `Debug` text.
    fn is_tapped(&self) -> bool {
        format!("{:?}{:?}{:?}", self.first, self.shared, self.unused).contains("Some(Tap")
    }
}

fn quantized(model: &Model) -> Model {
    let mut quantized = model.clone();
    let spec = all_int8().kind(LayerKind::custom("Own"), QConfig::int8());
    quantize_dynamic(&mut quantized, &spec).unwrap();
    quantized
}

#[test]
fn observing_measures_each_layer_on_its_own_inputs() {
    let mut model = Model::new();
    let quantized = quantized(&model);
    let (first, shared) = (model.first.clone(), Arc::clone(&model.shared[0]));
    let inputs = [random(&[3, 16]), random(&[1, 16])];
    let others = inspect::replays(&quantized).unwrap();
    let observed = inspect::observe(&mut model, others, |model| {
        assert!(model.is_tapped());
        std::thread::scope(|scope| {
            for xs in &inputs {
                scope.spawn(|| model.forward(xs));
            }
        });
        7
    })
    .unwrap();
    assert!(!model.is_tapped() && Arc::ptr_eq(&model.shared[0], &shared));
    assert!(Arc::ptr_eq(&model.shared[1], &shared));
    assert_eq!((observed.result, &observed.silent[..]), (7, &["unused".to_owned()][..]));
    let run = |model: &Model| Ok(inputs.each_ref().map(|xs| model.forward(xs)));
    let outputs = inspect::sensitivity(&mut model, &quantized, run).unwrap();
    assert!(outputs.keys().eq(observed.outputs.keys()));
    let paths: Vec<_> = observed.outputs.keys().collect();
    assert_eq!(paths, ["first", "shared.0"]);

    let (mut expected, mut expected_shared) =
        (inspect::Deviation::default(), inspect::Deviation::default());
    for xs in &inputs {
        let ys = first.forward(xs).unwrap();
        expected.add(&ys, &quantized.first.forward(xs).unwrap()).unwrap();
        for xs in [&ys, &shared.forward(&ys).unwrap()] {
            let got = quantized.shared[0].forward(xs).unwrap();
            expected_shared.add(&shared.forward(xs).unwrap(), &got).unwrap();
        }
    }
    for (path, expected) in [("first", expected), ("shared.0", expected_shared)] {
        let got = &observed.outputs[path];
        assert!((got.sqnr_db() - expected.sqnr_db()).abs() < 1e-9, "{path}");
        assert_eq!(got.count(), expected.count());
        assert!(got.sqnr_db() > 30. && got.sqnr_db() < 60.);
    }
}

#[test]
fn a_model_has_no_taps_after_an_error_or_a_panic() {
    let mut model = Model::new();
    let shared = Arc::clone(&model.shared[0]);
    let others = || inspect::replays(&quantized(&Model::new())).unwrap();
    let failed = inspect::observe(&mut model, others(), |_| Err::<(), _>("no data"));
    assert_eq!(failed.unwrap().result, Err("no data"));
    assert!(!model.is_tapped() && Arc::ptr_eq(&model.shared[0], &shared));

    let run = AssertUnwindSafe(|| {
        inspect::observe(&mut model, others(), |_| -> () { panic!("within the eval") })
    });
    assert!(catch_unwind(run).is_err());
    assert!(!model.is_tapped() && Arc::ptr_eq(&model.shared[0], &shared));

    let failed = inspect::sensitivity(&mut model, &quantized(&Model::new()), |_| {
        Err::<(), _>(candle_core::Error::Msg("no data".into()))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no data");
    assert!(!model.is_tapped() && Arc::ptr_eq(&model.shared[0], &shared));

    // A function that fails: the fault names the layer.
    let mut wrong = BTreeMap::new();
    let other = nn::Linear::new(random(&[3, 5]), None);
    wrong.insert("first".to_owned(), other.replay().unwrap());
    let observed = inspect::observe(&mut model, wrong, |model| model.forward(&random(&[1, 16])));
    fault(observed).starts("first: shape mismatch");
    assert!(!model.is_tapped());
}

/// A walk that attaches nothing leaves a layer's answer to the layer.
#[test]
fn a_layer_of_ones_own_says_that_it_reports_nothing() {
    struct Look(Vec<(String, bool)>);
    impl Visitor for Look {
        fn layer(&mut self, path: &str, layer: &dyn candle_dynquant::Layer) -> Result<()> {
            self.0.push((path.to_owned(), layer.replay().is_some()));
            Ok(())
        }
    }
    impl VisitorMut for Look {
        fn layer(&mut self, path: &str, layer: &mut dyn candle_dynquant::Layer) -> Result<bool> {
            self.0.push((path.to_owned(), layer.attach(None)));
            Ok(false)
        }
    }
    let mut model = Model::new();
    let (mut looked, mut attached) = (Look(Vec::new()), Look(Vec::new()));
    Walk::over(&model, &mut looked).unwrap();
    WalkMut::over(&mut model, &mut attached).unwrap();
    let own = ("own".to_owned(), false);
    assert!(looked.0.contains(&own) && attached.0.contains(&own));
    let silent = looked.0.iter().filter(|(_, reports)| !reports).count();
    assert_eq!((looked.0 == attached.0, silent), (true, 1));
}
