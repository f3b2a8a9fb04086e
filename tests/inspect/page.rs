//! The page: one file with pictures, whatever the model's names and figures are.

use candle_core::{Device, Module, Tensor};
use candle_dynquant::inspect::{PagePoint, inspect};
use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};

fn page(title: &str, spec: &QConfigSpec, points: &[PagePoint]) -> String {
    let linear = |outputs: usize| {
        let weight = Tensor::randn(0f32, 1., (outputs, 16), &Device::Cpu).unwrap();
        nn::Linear::new(weight, None)
    };
    let mut float = vec![linear(16), linear(16), linear(4)];
    let mut quantized = float.clone();
    quantize_dynamic(&mut quantized, spec).unwrap();
    let xs = Tensor::randn(0f32, 1., (8, 16), &Device::Cpu).unwrap();
    let run = |model: &Vec<nn::Linear>| model.iter().try_fold(xs.clone(), |xs, l| l.forward(&xs));
    inspect(&mut float, &mut quantized, run)
        .unwrap()
        .page(title, points)
        .unwrap()
}

#[test]
fn it_has_a_picture_for_each_figure_and_loads_nothing() {
    let point = |label: &str, score, best| PagePoint {
        label: label.to_owned(),
        score,
        best,
    };
    let points = [
        point("1", Some(0.7), Some(0.7)),
        point("2", None, Some(0.7)),
        point("3", Some(f64::NAN), Some(0.9)),
    ];
    let html = page(
        "a <model> & \"its\" layers",
        &QConfigSpec::int8().min_params(0),
        &points,
    );
    assert!(html.contains("<h1>a &lt;model&gt; &amp; &quot;its&quot; layers</h1>"));
    // The search, the errors, the sizes, and two distributions of each of three layers.
    assert_eq!(html.matches("<svg").count(), 3 + 2 * 3);
    assert_eq!(html.matches("</svg>").count(), 3 + 2 * 3);
    assert!(html.contains("3 of 3 layers quantized") && html.contains("end to end: "));
    assert!(html.contains("best so far") && html.contains("along the run"));
    // A row of bars for each layer, below and above a frame, and the table again.
    assert!(html.contains("height=\"200\""));
    assert_eq!(html.matches("<tr><td>").count(), 3);
    assert!(html.contains("<tr><th>") && html.contains("<summary>2</summary>"));
    for foreign in ["<script", " src=", "@import", "<iframe"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    let links = html.matches("://").count() - html.matches("\"http://www.w3.org/").count();
    assert_eq!(links, 0, "nothing but the namespace of SVG");
}

#[test]
fn without_a_search_or_codes_it_is_a_page_too() {
    let html = page("halves", &QConfigSpec::float16(), &[]);
    assert_eq!(html.matches("<svg").count(), 2 + 2 * 3);
    assert!(!html.contains("best so far") && !html.contains("NaN"));
}

#[test]
fn a_model_that_is_a_layer_has_a_name_and_histograms_have_values() {
    let weight = Tensor::randn(0f32, 1., (64, 16), &Device::Cpu).unwrap();
    let mut float = nn::Linear::new(weight, None);
    let mut quantized = float.clone();
    quantize_dynamic(&mut quantized, &QConfigSpec::int8().min_params(0)).unwrap();
    let xs = Tensor::randn(0f32, 1., (8, 16), &Device::Cpu).unwrap();
    let inspection = inspect(&mut float, &mut quantized, |model| model.forward(&xs)).unwrap();
    let html = inspection.page("one", &[]).unwrap();
    assert!(html.contains("<summary>(the model itself)</summary>"));
    // The axis of sizes ends not far beyond 4.096 kB.
    let (_, sizes) = html.split_once("Weights in kB").unwrap();
    let (sizes, _) = sizes.split_once("</svg>").unwrap();
    let texts = sizes
        .split("</text>")
        .filter_map(|text| text.rsplit('>').next());
    let numbers = texts.filter_map(|text| text.trim().parse().ok());
    let last = numbers.fold(0f64, f64::max);
    assert!((4. ..10.).contains(&last), "{last}");
    let bins = inspection.layers[0].weights[0].histogram.bins();
    let step = bins.len().div_ceil(7).max(1);
    for (value, _) in bins.iter().step_by(step) {
        assert!(html.contains(&format!("{value:.3}")), "{value}");
    }
}
