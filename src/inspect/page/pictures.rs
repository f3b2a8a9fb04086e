//! The pictures of a page: bars in a table, lines and areas in SVG.

use std::fmt::Display;

use crate::inspect::histogram::Histogram;
use crate::inspect::run::LayerInspection;
use crate::quantize::text::shown;

/// A step of a search for a quantization, as it is drawn on a page.
#[derive(Clone, Debug, PartialEq)]
pub struct PagePoint {
    /// The name of the step, for example the number of a trial.
    pub label: String,
    /// The score that it reached; `None` of a trial that failed.
    pub score: Option<f64>,
    /// The best score until then.
    pub best: Option<f64>,
}

/// The length of a bar and the figure at its end.
pub type Bar = (f64, String);

/// A table with two bars for each layer, and the titles of the table and of both bars.
pub fn bars<'a>(
    [title, titles @ ..]: [&str; 3],
    layers: impl Iterator<Item = &'a LayerInspection>,
    of: impl Fn(&LayerInspection) -> [Bar; 2],
) -> String {
    let layers: Vec<_> = layers.map(|layer| (escaped(shown(&layer.path)), of(layer))).collect();
    let lengths = layers.iter().flat_map(|(_, bars)| bars).map(|bar| bar.0);
    let longest = lengths.filter(|length| length.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let drawn = |bars: [Bar; 2]| {
        bars.map(|(length, text)| {
            let share = (length / longest).clamp(0., 1.);
            format!("<div style='--share:{share:.3}'>{text}</div>")
        })
        .concat()
    };
    let legend = titles.map(|title| (longest / 20., title.to_owned()));
    let header = row("th", [title.to_owned(), drawn(legend)]);
    let rows = layers.into_iter().map(|(name, bars)| row("td", [name, drawn(bars)]));
    format!("<table class='bars'>\n{header}{}</table>\n", rows.collect::<String>())
}

/// The counts of a histogram. Outliers are few: on a logarithmic axis they are seen.
pub fn histogram(name: &str, histogram: &Histogram) -> String {
    let half = f64::from(histogram.width() / 2.);
    let bins = histogram.bins().into_iter();
    let area: Vec<_> = bins
        .flat_map(|(middle, count)| {
            let [left, right] = [-half, half].map(|half| f64::from(middle) + half);
            let height = (1. + count as f64).log10();
            [[left, 0.], [left, height], [right, height], [right, 0.]]
        })
        .collect();
    let x_ticks = ticks(range(area.iter().map(|[x, _]| *x)));
    let caption = format!("{}: log10(1 + count)", escaped(name));
    plot(&caption, &x_ticks, &[("area", "L", area)])
}

/// Scores over trials.
pub fn curve(points: &[PagePoint]) -> String {
    let line = |figure: fn(&PagePoint) -> Option<f64>| {
        let points = points.iter().enumerate();
        let points = points.filter_map(|(at, point)| Some([at as f64, figure(point)?]));
        // Values within f32's range leave room for the arithmetic of axes.
        points.filter(|[_, y]| (*y as f32).is_finite()).collect()
    };
    let lines =
        [("line", "L", line(|point| point.best)), ("dots", "h0M", line(|point| point.score))];
    let labels = points.iter().enumerate().step_by(points.len().div_ceil(8).max(1));
    let labels: Vec<_> = labels.map(|(at, point)| (at as f64, escaped(&point.label))).collect();
    plot("score of each trial (dots), best so far (line)", &labels, &lines)
}

/// Lines in axes with ticks: a class, what joins two points of the path, and the points.
fn plot(caption: &str, x_ticks: &[(f64, String)], lines: &[(&str, &str, Vec<[f64; 2]>)]) -> String {
    let points = || lines.iter().flat_map(|(.., points)| points);
    let [xs, ys] = [0, 1].map(|axis| range(points().map(|point| point[axis])));
    let share = |[low, high]: [f64; 2], value| (value - low) / (high - low);
    let x = |value: f64| 50. + 400. * share(xs, value);
    let y = |value: f64| 200. - 190. * share(ys, value);
    let mut svg = String::new();
    for (y, label) in ticks(ys).iter().map(|(value, label)| (y(*value), label)) {
        svg += &format!("<path class='tick' d='M50 {y:.1}h400'/>");
        svg += &format!("<text class='y' x='44' y='{y:.1}'>{label}</text>\n");
    }
    for (x, label) in x_ticks.iter().map(|(value, label)| (x(*value), label)) {
        svg += &format!("<path class='tick' d='M{x:.1} 200v5'/>");
        svg += &format!("<text x='{x:.1}' y='220'>{label}</text>\n");
    }
    for (class, joint, points) in lines.iter().filter(|(.., points)| !points.is_empty()) {
        let points = points.iter().map(|point| format!("{:.1} {:.1}", x(point[0]), y(point[1])));
        let points = points.collect::<Vec<_>>().join(joint);
        svg += &format!("<path class='{class}' d='M{points}h0'/>\n");
    }
    let caption = format!("<figcaption>{caption}</figcaption>");
    format!("<figure><svg viewBox='0 0 480 225'>\n{svg}</svg>{caption}</figure>\n")
}

/// The least and the greatest value, with room on both sides if they are equal.
fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let ends = [f64::INFINITY, f64::NEG_INFINITY];
    match values.fold(ends, |[low, high], value| [low.min(value), high.max(value)]) {
        [low, high] if low < high => [low, high],
        [one, _] if one.is_finite() => [-0.5, 0.5].map(|room| one + room * (1. + one.abs())),
        _ => [0., 1.],
    }
}

/// Round numbers in a range, at most seven. An f32 shows no noise of the arithmetic.
fn ticks([low, high]: [f64; 2]) -> Vec<(f64, String)> {
    let least = (high - low) / 6.;
    let power = 10f64.powf(least.log10().floor());
    let step = match least / power {
        ..=1. => power,
        ..=2. => 2. * power,
        ..=5. => 5. * power,
        _ => 10. * power,
    };
    let ticks = (0..=6).map(|tick| ((low / step).ceil() + f64::from(tick)) * step);
    let ticks = ticks.take_while(|tick| *tick <= high);
    let label = |tick| format!("{:?}", tick as f32).trim_end_matches(".0").to_owned();
    ticks.map(|tick| (tick, label(tick))).collect()
}

/// A row of a table; cells are HTML.
pub fn row<T: Display, const N: usize>(tag: &str, cells: [T; N]) -> String {
    let cells = cells.map(|cell| format!("<{tag}>{cell}</{tag}>"));
    format!("<tr>{}</tr>\n", cells.concat())
}

/// Text for HTML.
pub fn escaped(text: impl AsRef<str>) -> String {
    let text = text.as_ref().replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
