//! Files do not depend on the instruction set: each writes the same bytes, and reads the same bits.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use candle_dynquant::Isa;
use candle_dynquant::{Checkpoint, checkpoint};

use super::model::{Model, quantized, specs, write_float};

/// The folder that parent and children share.
const FOLDER: &str = "DYNQUANT_TEST_CHECKPOINTS";

/// Runs in a child: loads the parent's model, and writes a copy.
#[test]
fn child() -> Result<()> {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return Ok(());
    };
    let float = folder.join("model.safetensors");
    for (number, (_, spec)) in specs().into_iter().enumerate() {
        let theirs = Model::open(&folder.join(format!("{number}.safetensors")))?;
        let own = folder.join(format!("{number}-own.safetensors"));
        checkpoint::save(&quantized(&float, &spec)?, &Checkpoint::open(&float)?, &own)?;
        println!("bits {number} {:?}", theirs.bits()?);
    }
    Ok(())
}

#[test]
fn written_on_one_and_read_on_another() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let mut expected = Vec::new();
    for (number, (_, spec)) in specs().into_iter().enumerate() {
        let model = quantized(&float, &spec)?;
        let path = dir.path().join(format!("{number}.safetensors"));
        checkpoint::save(&model, &Checkpoint::open(&float)?, path)?;
        expected.push(format!("bits {number} {:?}", model.bits()?));
    }
    for isa in Isa::available() {
        let output = Command::new(std::env::current_exe()?)
            .args(["isa::child", "--exact", "--nocapture"])
            .env(FOLDER, dir.path())
            .env("DYNQUANT_ISA", isa.to_string())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{isa}: {text}");
        for (number, bits) in expected.iter().enumerate() {
            assert!(text.contains(bits), "{isa}: spec {number}");
            let read = |name: String| std::fs::read(dir.path().join(name));
            let (ours, own) = (
                read(format!("{number}.safetensors"))?,
                read(format!("{number}-own.safetensors"))?,
            );
            assert!(ours == own, "{isa}: spec {number} is written otherwise");
        }
    }
    Ok(())
}
