//! An inspection as a page with pictures: one HTML file that needs no network and no script.

mod charts;

use super::run::{Inspection, LayerInspection};
use super::table::{HEADER, cells};
use crate::error::Result;
pub use charts::PagePoint;
use charts::{Bars, bars, curve, histogram};

impl Inspection {
    /// A page of HTML: the table, and pictures of the error of each layer, its size before and
    /// after, and the distributions of its weights and activations; if there are `points`, also the
    /// curve of the search that led to the model.
    ///
    /// It is one file, readable offline: pictures are SVG within it.
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
    /// let page = inspect::inspect(&mut float, &mut quantized, run)?.page("A linear layer", &[])?;
    /// assert!(page.starts_with("<!DOCTYPE html>"));
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a picture cannot be drawn.
    pub fn page(&self, title: &str, points: &[PagePoint]) -> Result<String> {
        let title = escaped(title);
        let mut body = format!("<h1>{title}</h1>\n<p>{}</p>\n", self.summary());
        if !points.is_empty() {
            body += &section("Search", &curve(points)?);
        }
        body += &section("Error of each layer", &self.errors()?);
        body += &section("Size of each layer", &self.sizes()?);
        body += &section("All figures", &self.html_table());
        body += "<section><h2>Distributions</h2>\n";
        for layer in self.layers.iter().filter(|layer| layer.quantized) {
            body += &distributions(layer)?;
        }
        body += "</section>\n";
        Ok(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
        ))
    }

    fn summary(&self) -> String {
        let quantized = self.layers.iter().filter(|layer| layer.quantized).count();
        let bytes = |of: fn(&LayerInspection) -> usize| self.layers.iter().map(of).sum::<usize>();
        let (before, after) = (
            bytes(|layer| layer.bytes_before),
            bytes(|layer| layer.bytes_after),
        );
        let text = format!(
            "{quantized} of {} layers quantized, weights {:.2} MB → {:.2} MB; {}",
            self.layers.len(),
            before as f64 / 1e6,
            after as f64 / 1e6,
            self.end_to_end(),
        );
        escaped(&text)
    }

    fn errors(&self) -> Result<String> {
        let layers = || self.layers.iter().filter(|layer| layer.quantized);
        let decibels = |of: fn(&LayerInspection) -> Option<f64>| layers().map(of).collect();
        bars(Bars {
            title: "SQNR in dB: more is better",
            labels: layers().map(name).collect(),
            series: [
                ("by itself", decibels(|layer| Some(layer.output?.sqnr_db()))),
                (
                    "along the run",
                    decibels(|layer| Some(layer.along?.sqnr_db())),
                ),
            ],
        })
    }

    fn sizes(&self) -> Result<String> {
        let layers = || self.layers.iter().filter(|layer| layer.bytes_before > 0);
        let kilobytes = |of: fn(&LayerInspection) -> usize| {
            layers().map(|l| Some(of(l) as f64 / 1e3)).collect()
        };
        bars(Bars {
            title: "Weights in kB",
            labels: layers().map(name).collect(),
            series: [
                ("before", kilobytes(|layer| layer.bytes_before)),
                ("after", kilobytes(|layer| layer.bytes_after)),
            ],
        })
    }

    fn html_table(&self) -> String {
        let row = |cells: &[String], tag: &str| {
            let cells = cells
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows = self.measured().map(|layer| row(&cells(layer), "td"));
        let header = row(&HEADER.map(str::to_owned), "th");
        format!("<table>\n{header}{}</table>\n", rows.collect::<String>())
    }
}

/// The pictures of a layer's weights and input, folded up.
fn distributions(layer: &LayerInspection) -> Result<String> {
    let mut pictures = String::new();
    for weight in &layer.weights {
        pictures += &histogram(&weight.name, &weight.histogram)?;
    }
    if let Some(input) = &layer.input {
        pictures += &histogram("activations", &input.histogram)?;
    }
    let name = escaped(&name(layer));
    Ok(format!(
        "<details><summary>{name}</summary>\n<div>{pictures}</div></details>\n"
    ))
}

fn name(layer: &LayerInspection) -> String {
    match layer.path.as_str() {
        "" => "(the model itself)".to_owned(),
        path => path.to_owned(),
    }
}

fn section(title: &str, content: &str) -> String {
    format!("<section><h2>{title}</h2>\n{content}</section>\n")
}

/// Text for HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c => escaped.push(c),
        }
    }
    escaped
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;\
color:#222;background:#fff}h1{margin-bottom:0}section{margin:2em 0}svg{max-width:100%;height:auto}svg text{font-family:system-ui,sans-serif}\
table{border-collapse:collapse;font-size:12px;display:block;overflow-x:auto}\
td,th{padding:2px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid #ddd}\
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}\
details{border-bottom:1px solid #ddd;padding:4px 0}summary{cursor:pointer}";
