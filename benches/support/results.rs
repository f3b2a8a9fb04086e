//! What a benchmark found, as `--json` prints it.

use anyhow::Result;
use candle_dynquant::kernels::Isa;
use serde::Serialize;

#[derive(Serialize)]
pub struct Results<Row> {
    pub isa: String,
    pub threads: usize,
    pub rows: Vec<Row>,
}

impl<Row: Serialize> Results<Row> {
    pub fn new(threads: usize) -> Result<Self> {
        Ok(Self {
            isa: Isa::active()?.to_string(),
            threads,
            rows: Vec::new(),
        })
    }

    /// As one JSON object.
    pub fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}
