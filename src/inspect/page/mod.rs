//! An inspection as a page with pictures: one HTML file that needs no network and no script.

mod pictures;

use super::run::{Inspection, LayerInspection};
use super::table::{HEADER, cells, decibels};
use crate::deviation::Deviation;
use crate::quantize::text::shown;
pub use pictures::PagePoint;
use pictures::{Bar, bars, curve, escaped, histogram, row};

impl Inspection {
    /// A page of HTML: the table, and pictures of the error of each layer, its size before and
    /// after, and the distributions of its weights and activations; if there are `points`, also the
    /// curve of the search that led to the model.
    ///
    /// It is one file, readable offline: pictures are within it.
    ///
    /// ```
    /// use candle_core::{Device, Module, Tensor};
    /// use candle_dynquant::{inspect, nn, quantize_dynamic, QConfigSpec};
    ///
    /// let mut float = nn::Linear::new(Tensor::randn(0f32, 1., (32, 32), &Device::Cpu)?, None);
    /// let mut quantized = float.clone();
    /// quantize_dynamic(&mut quantized, &QConfigSpec::int8())?;
    /// let xs = Tensor::randn(0f32, 1., (16, 32), &Device::Cpu)?;
    /// let run = |model: &nn::Linear| model.forward(&xs);
    /// let page = inspect::inspect(&mut float, &mut quantized, run)?.page("A linear layer", &[]);
    /// assert!(page.starts_with("<!DOCTYPE html>"));
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    pub fn page(&self, title: &str, points: &[PagePoint]) -> String {
        let quantized = || self.layers.iter().filter(|layer| layer.quantized);
        let held = self.layers.iter().filter(|layer| layer.bytes_before > 0);
        let search = match points {
            [] => String::new(),
            points => format!("<h2>Search</h2>\n{}", curve(points)),
        };
        let titles = ["SQNR in dB: more is better", "by itself", "along the run"];
        let errors = bars(titles, quantized(), |layer| [layer.output, layer.along].map(error));
        let sizes = bars(["Weights in kB", "before", "after"], held, |layer| {
            [layer.bytes_before, layer.bytes_after].map(kilobytes)
        });
        let figures = self.measured().map(|l| row("td", cells(l).map(escaped)));
        let figures = row("th", HEADER) + &figures.collect::<String>();
        let distributions: String = quantized().map(distributions).collect();
        let (title, summary) = (escaped(title), escaped(self.summary()));
        let style = include_str!("style.css");
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <link rel=\"icon\" href=\"data:,\">\n<style>\n{style}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n<p>{summary}</p>\n{search}\
             <h2>Error of each layer</h2>\n{errors}<h2>Size of each layer</h2>\n{sizes}\
             <h2>All figures</h2>\n<table>\n{figures}</table>\n\
             <h2>Distributions</h2>\n{distributions}</body>\n</html>\n",
        )
    }

    fn summary(&self) -> String {
        let quantized = self.layers.iter().filter(|layer| layer.quantized).count();
        let megabytes = |bytes: fn(&LayerInspection) -> usize| {
            self.layers.iter().map(bytes).sum::<usize>() as f64 / 1e6
        };
        format!(
            "{quantized} of {} layers quantized, weights {:.2} MB → {:.2} MB; {}",
            self.layers.len(),
            megabytes(|layer| layer.bytes_before),
            megabytes(|layer| layer.bytes_after),
            self.end_to_end(),
        )
    }
}

fn error(deviation: Option<Deviation>) -> Bar {
    let bar = deviation.map(|deviation| (deviation.sqnr_db(), decibels(&deviation)));
    bar.unwrap_or((0., "-".to_owned()))
}

fn kilobytes(bytes: usize) -> Bar {
    let kilobytes = bytes as f64 / 1e3;
    (kilobytes, format!("{kilobytes:.1}"))
}

/// The pictures of a layer's weights and input, folded up.
fn distributions(layer: &LayerInspection) -> String {
    let weights = layer.weights.iter().map(|w| (&*w.name, &w.histogram));
    let input = layer.input.iter().map(|i| ("activations", &i.histogram));
    let pictures = weights.chain(input).map(|(name, counts)| histogram(name, counts));
    let (name, pictures) = (escaped(shown(&layer.path)), pictures.collect::<String>());
    format!("<details><summary>{name}</summary>\n{pictures}</details>\n")
}
