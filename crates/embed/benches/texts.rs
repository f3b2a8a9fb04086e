//! The part of `run.sh` for this crate: a request per line, `{"texts": [..], "calls": 3}` for
//! vectors, with a `query` for scores, and for each the answer with the seconds of the fastest
//! call.
#![allow(missing_docs)]

use std::io::stdin;
use std::time::Instant;

use anyhow::{Context, Result};
use candle_dynquant_io::print;
use dynquant_embed::{Embedder, Reranker};
use mimalloc::MiMalloc;
use serde::Deserialize;

/// The allocator of the programs.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[derive(Deserialize)]
struct Request {
    query: Option<String>,
    texts: Vec<String>,
    calls: usize,
}

fn main() -> Result<()> {
    // Cargo adds arguments.
    let mut arguments = std::env::args().skip(1).filter(|it| !it.starts_with('-'));
    let (Some(embedder), Some(reranker)) = (arguments.next(), arguments.next()) else {
        print::note("run by crates/embed/benches/run.sh");
        return Ok(());
    };
    let embedder = Embedder::open(embedder)?;
    let reranker = Reranker::open(reranker)?;
    for line in stdin().lines() {
        let request: Request = serde_json::from_str(&line?).context("a request")?;
        let mut fastest = f64::INFINITY;
        let (mut vectors, mut scores) = (Vec::new(), Vec::new());
        for _ in 0..request.calls {
            let start = Instant::now();
            match &request.query {
                None => vectors = embedder.embed(&request.texts)?,
                Some(query) => scores = reranker.scores(query, &request.texts)?,
            }
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
        print::data(serde_json::json!({"seconds": fastest, "vectors": vectors, "scores": scores}))?;
    }
    Ok(())
}
