//! Follows the pitch of a melody by convolutions, in float and in int8, side by side.
//!
//!     cargo run --release --example pitch
//!     cargo run --release --example pitch -- --wav song.wav --threads 1
//!
//! The first command prints, with the times and the instruction set of your machine:
//!
//! ```text
//! a melody of 15 notes: 570 frames of 64 ms
//! 4 of 5 layers swapped (int8)
//!
//! G4               █████████
//! F#4                       █
//! F4           ████          ████
//! E4  █████████                  ████                   ███████████
//! ...
//!                                        float     quantized
//! within 50 cents                     100.00 %      100.00 %
//! same note as float                                100.00 %
//! ...
//! weights of swapped layers             868 KB        235 KB
//! ```
//!
//! `sound` makes the melody or reads a file, `network` is the model, `figures` prints the results.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod figures;
mod network;
mod sound;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_dynquant::{Checkpoint, quantize_dynamic};
use candle_dynquant_support::cli::{self, Arguments, Common, Progress, positive};
use candle_dynquant_support::repository;
use clap::Parser;
use mimalloc::MiMalloc;

use figures::Figures;
use network::Network;
use sound::Sound;

/// Keeps the memory of large results for the next call; glibc's returns 32 MiB and more to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The pitch of a melody by a network of convolutions, in float and in int8, side by side: notes,
/// agreement, speed, bytes.
///
/// Without arguments it follows a melody that it plays itself.
#[derive(Parser, Debug)]
#[command(name = "pitch", version)]
struct Args {
    /// A WAV file of one voice at 16 kHz
    #[arg(long, value_name = "FILE")]
    wav: Option<PathBuf>,

    /// Number of timed calls of each model, of all frames
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = positive)]
    timings: usize,

    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

impl Arguments for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        let spec = self.common.spec()?;
        let sound = match &self.wav {
            Some(file) => Sound::read(file)?,
            None => Sound::melody(),
        };
        let frames = sound.frames()?;

        let checkpoint = Checkpoint::open(repository().join("assets/pitch/model.safetensors"))?;
        let float = Network::new(checkpoint.var_builder(DType::F32, &Device::Cpu))?;
        let candle = Network::of_candle(checkpoint.var_builder(DType::F32, &Device::Cpu))?;
        let mut quantized = float.clone();
        let report = quantize_dynamic(&mut quantized, &spec)?;

        let calls: [&dyn Fn() -> Result<Tensor>; 3] =
            [&|| candle.forward(&frames), &|| float.forward(&frames), &|| {
                quantized.forward(&frames)
            }];
        let mut progress = Progress::new("calls");
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..self.timings {
            // In turn, so that a slow moment meets all.
            for (call, times) in calls.iter().zip(&mut times) {
                let start = Instant::now();
                call()?;
                times.push(start.elapsed());
                progress.tick(calls.len() * self.timings);
            }
        }
        let median = |mut times: Vec<_>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let figures = Figures::new(
            &sound,
            self.common.name(),
            &report,
            [float.forward(&frames)?, quantized.forward(&frames)?],
            times.map(median),
        )?;
        self.common.print(&report, &figures, || figures.text(&sound, &report))
    }
}
