//! The pictures of a page, by charts-rs.

use charts_rs::{BarChart, Box as Margin, HorizontalBarChart, LineChart, Series};

use crate::error::{Error, Fault, Result};
use crate::inspect::histogram::Histogram;

/// A step of a search for a quantization, as it is drawn on a page.
#[derive(Clone, Debug, PartialEq)]
pub struct PagePoint {
    /// Its name, for example the number of a trial.
    pub label: String,
    /// The score that it reached; `None` of a trial that failed.
    pub score: Option<f64>,
    /// The best score until then.
    pub best: Option<f64>,
}

/// Two bars for each label.
pub struct Bars<'a> {
    pub title: &'a str,
    pub labels: Vec<String>,
    pub series: [(&'a str, Vec<Option<f64>>); 2],
}

/// Pixels of the pictures.
const WIDTH: f32 = 1_000.;
const HISTOGRAM_WIDTH: f32 = 480.;
const HISTOGRAM_HEIGHT: f32 = 240.;
/// Heights of a label with its two bars, and of everything around them.
const ROW_HEIGHT: f32 = 30.;
const FRAME_HEIGHT: f32 = 110.;
/// Labels below a histogram; more would be on top of each other.
const TICKS: usize = 7;

/// A row of bars for each label.
pub fn bars(bars: Bars<'_>) -> Result<String> {
    if bars.labels.is_empty() {
        return Ok("<p>none</p>\n".to_owned());
    }
    let height = FRAME_HEIGHT + ROW_HEIGHT * bars.labels.len() as f32;
    // The first label is the lowest.
    let reversed = |values: Vec<Option<f64>>| values.into_iter().rev().collect::<Vec<_>>();
    let series = bars
        .series
        .map(|(name, values)| line(name, reversed(values)));
    let labels = bars.labels.into_iter().rev().collect();
    let mut chart = HorizontalBarChart::new(series.into(), labels);
    chart.title.text = bars.title.to_owned();
    (chart.width, chart.height) = (WIDTH, height);
    drawn(chart.svg())
}

/// The counts of a histogram.
pub fn histogram(title: &str, histogram: &Histogram) -> Result<String> {
    let bins = histogram.bins();
    if bins.is_empty() {
        return Ok(String::new());
    }
    let step = bins.len().div_ceil(TICKS).max(1);
    let label = |(at, (value, _)): (usize, &(f32, u64))| match at % step {
        0 => format!("{value:.3}"),
        _ => String::new(),
    };
    let labels = bins.iter().enumerate().map(label).collect();
    let heights = bins.iter().map(|(_, count)| Some(height(*count)));
    let series = line("log10(1 + count)", heights.collect());
    let mut chart = BarChart::new(vec![series], labels);
    chart.title.text = title.to_owned();
    chart.margin = Margin::from(10.);
    (chart.width, chart.height) = (HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT);
    drawn(chart.svg())
}

/// Outliers are few: on a logarithmic axis they are seen.
fn height(count: u64) -> f64 {
    (1. + count as f64).log10()
}

/// Scores over trials.
pub fn curve(points: &[PagePoint]) -> Result<String> {
    let scores = points.iter().map(|point| point.score).collect();
    let best = points.iter().map(|point| point.best).collect();
    let labels = points.iter().map(|point| point.label.clone()).collect();
    let series = vec![line("trial", scores), line("best so far", best)];
    let mut chart = LineChart::new(series, labels);
    chart.title.text = "Score of each trial".to_owned();
    (chart.width, chart.height) = (WIDTH, 360.);
    drawn(chart.svg())
}

/// A series; values that are not finite are gaps.
fn line(name: &str, values: Vec<Option<f64>>) -> Series {
    let finite = |value: Option<f64>| value.filter(|v| v.is_finite()).map(|v| v as f32);
    let mut series = Series::new(name.to_owned(), Vec::new());
    series.data = values.into_iter().map(finite).collect();
    series
}

fn drawn<E: std::fmt::Display>(svg: Result<String, E>) -> Result<String> {
    svg.map_err(|error| {
        Error::from(Fault::InvalidArgument {
            what: "picture",
            expected: "values that can be drawn".into(),
            got: error.to_string(),
        })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn few_are_seen_beside_many() {
        assert_eq!([0, 9, 999].map(super::height), [0., 1., 3.]);
    }
}
