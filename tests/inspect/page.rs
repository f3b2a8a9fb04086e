//! The page: one file with pictures, for any names and figures.

use candle_dynquant::inspect::{PagePoint, inspect};

use crate::inspect_quantized;
use crate::kit::*;

fn page(title: &str, spec: &QConfigSpec, points: &[PagePoint]) -> String {
    let linear = |outputs: usize| nn::Linear::new(random(&[outputs, 16]), None);
    let mut float = vec![linear(16), linear(16), linear(4)];
    let xs = random(&[8, 16]);
    let (_, inspection) = inspect_quantized(&mut float, spec, |model| {
        model.iter().try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
    });
    inspection.page(title, points)
}

#[test]
fn it_has_a_picture_for_each_figure_and_loads_nothing() {
    let point = |label: &str, score, best| PagePoint { label: label.to_owned(), score, best };
    let points = [
        point("1", Some(0.7), Some(0.7)),
        point("2", None, Some(0.7)),
        point("3", Some(f64::NAN), Some(0.9)),
    ];
    let html = page("a <model> & \"its\" layers", &all_int8(), &points);
    assert!(html.contains("<h1>a &lt;model&gt; &amp; &quot;its&quot; layers</h1>"));
    // The search, and two distributions of each of three layers.
    assert_eq!(html.matches("<svg").count(), 1 + 2 * 3);
    assert_eq!(html.matches("<path class='area' d='M50.0 200.0L").count(), 2 * 3);
    // Two finite scores and three best scores: the best is drawn at the top, the worst at the
    // bottom.
    let path = |class: &str| between(&html, &format!("<path class='{class}' d='M"), "h0'/>");
    assert_eq!(path("line"), "50.0 200.0L250.0 200.0L450.0 10.0");
    assert_eq!(path("dots"), "50.0 200.0");
    assert!(html.contains("3 of 3 layers quantized") && html.contains("end to end: "));
    assert!(html.contains("best so far") && html.contains("along the run"));
    // A row for each layer in the errors, the sizes and the table; two bars in the former.
    assert_eq!(html.matches("<tr><td>").count(), 3 * 3);
    assert_eq!(html.matches("<div style='--share:").count(), 2 * 2 * (1 + 3));
    assert!(html.contains("<tr><th>") && html.contains("<summary>2</summary>"));
    for foreign in ["<script", " src=", "@import", "<iframe", "://", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
}

/// The text between two markers.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).expect("its start");
    rest.split_once(end).expect("its end").0
}

#[test]
fn without_a_search_or_codes_it_is_a_page_too() {
    let html = page("halves", &QConfigSpec::float16(), &[]);
    assert_eq!(html.matches("<svg").count(), 2 * 3);
    assert!(!html.contains("best so far") && !html.contains("NaN"));
}

#[test]
fn scores_that_no_axis_holds_leave_a_page() {
    let (spec, failed) = (all_int8(), [None, None]);
    let extremes = [f64::MIN, f64::MAX, f64::from(f32::MIN), f64::from(f32::MAX)];
    let scores = [f64::NAN, f64::INFINITY, 0., -0., 47., 5e-324, 1e-300, 1e20, 1e20 + 2e4];
    let ones = scores.map(|score| vec![[Some(score); 2]]);
    let many = (0..500).map(|trial| [Some(f64::from(trial)); 2]).collect();
    let searches = [vec![failed], extremes.map(|score| [Some(score), None]).into(), many];
    let pairs = scores.map(|score| vec![[Some(score), Some(47.)], [Some(47.), Some(score)]]);
    for search in ones.into_iter().chain(searches).chain(pairs) {
        let point = |[score, best]: &[Option<f64>; 2]| PagePoint {
            label: "<b>".to_owned(),
            score: *score,
            best: *best,
        };
        let points: Vec<_> = search.iter().map(point).collect();
        let html = page("scores", &spec, &points);
        let svg = between(&html, "<svg", "</svg>");
        for fault in ["NaN", "inf", "<b>", "Mh0"] {
            assert!(!svg.contains(fault), "{fault} of {search:?}: {svg}");
        }
        assert!((1..=9).contains(&svg.matches("y='220'").count()), "{svg}");
        assert!(svg.matches("class='y'").count() <= 7, "{svg}");
    }
}

#[test]
fn a_layer_that_is_exact_not_called_or_not_finite_has_a_bar_or_none() {
    let layer =
        |scale: f32| nn::Linear::new(Tensor::full(scale, (16, 16), &Device::Cpu).unwrap(), None);
    let mut float = vec![layer(1.), layer(0.), layer(1.)];
    let mut quantized = float.clone();
    quantize_dynamic(&mut quantized, &QConfigSpec::float16()).unwrap();
    for (value, bars) in [
        (1f32, ["1.000'>exact", "1.000'>exact"]),
        (f32::INFINITY, ["0.000'>not finite", "0.000'>not finite"]),
    ] {
        let xs = Tensor::full(value, (2, 16), &Device::Cpu).unwrap();
        let run = |model: &Vec<nn::Linear>| {
            model[..1].iter().try_fold(xs.clone(), |xs, l| l.forward(&xs))
        };
        let html = inspect(&mut float, &mut quantized, run).unwrap().page("bars", &[]);
        let cells = bars.map(|bar| format!("<div style='--share:{bar}</div>")).concat();
        assert!(html.contains(&format!("<tr><td>0</td><td>{cells}</td></tr>")), "{html}");
        let none = "<div style='--share:0.000'>-</div>".repeat(2);
        assert!(html.contains(&format!("<tr><td>1</td><td>{none}</td></tr>")), "{html}");
    }
    let mut none = [Vec::<nn::Linear>::new(), Vec::new()];
    let [float, quantized] = &mut none;
    let empty = inspect(float, quantized, |_| Tensor::zeros(1, DType::F32, &Device::Cpu)).unwrap();
    assert_eq!(empty.page("nothing", &[]).matches("<table").count(), 3);
}

#[test]
fn a_model_that_is_a_layer_has_a_name_and_pictures_have_figures() {
    let mut float = nn::Linear::new(random(&[64, 16]), None);
    let xs = random(&[8, 16]);
    let (_, inspection) = inspect_quantized(&mut float, &all_int8(), |model| model.forward(&xs));
    let html = inspection.page("one", &[]);
    assert!(html.contains("<summary>(the model itself)</summary>"));
    // The bar of 4.096 kB is the longest; the other bar is in proportion.
    let sizes = between(&html, "Weights in kB", "</table>");
    let [_, after] = crate::bytes(&inspection.layers[0]);
    let after = after as f64 / 1e3;
    assert!(sizes.contains("--share:1.000'>4.1<"), "{sizes}");
    let bar = format!("--share:{:.3}'>{after:.1}<", after / 4.096);
    assert!(sizes.contains(&bar), "{bar}: {sizes}");
    // The axis of the weights: rising ticks between the ends of the histogram.
    let weights = between(&html, "<summary>", "</svg>");
    let ticks = weights.split("y='220'>").skip(1);
    let ticks: Vec<f32> =
        ticks.map(|tick| tick.split('<').next().unwrap().parse().unwrap()).collect();
    assert!(ticks.len() >= 3 && ticks.is_sorted() && ticks.contains(&0.), "{ticks:?}");
    let bins = inspection.layers[0].weights[0].histogram.bins();
    let (first, last) = (bins[0].0, bins[bins.len() - 1].0);
    assert!(ticks[0] > first - 0.1 && ticks[ticks.len() - 1] < last + 0.1, "{ticks:?}");
    // Four corners of each bin, on a logarithmic axis: few are seen beside many.
    let area = between(weights, "<path class='area' d='M", "h0'/>");
    let corners: Vec<_> = area.split('L').collect();
    assert_eq!(corners.len(), 4 * bins.len());
    let height = |count: u64| (1. + count as f64).log10();
    let highest = height(bins.iter().map(|bin| bin.1).max().unwrap());
    for (corners, (_, count)) in corners.chunks(4).zip(bins) {
        let top = format!(" {:.1}", 200. - 190. * height(count) / highest);
        assert!(corners[1].ends_with(&top) && corners[2].ends_with(&top), "{corners:?}, {top}");
    }
}
