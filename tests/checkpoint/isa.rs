//! Files do not depend on the instruction set: each writes the same bytes, and reads the same bits.

use std::process::Command;

use anyhow::ensure;
use candle_dynquant::Isa;

use super::model::{Model, quantized, source, specs};
use crate::kit::*;

/// The folder that parent and children share.
const FOLDER: &str = "DYNQUANT_TEST_CHECKPOINTS";

/// Runs in a child: loads the parent's model, and writes a copy.
#[test]
fn child() -> Result<()> {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return Ok(()) };
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
    let source = source()?;
    let mut expected = Vec::new();
    for (number, (_, spec)) in specs().into_iter().enumerate() {
        let model = quantized(&source.path, &spec)?;
        let path = source.beside(&format!("{number}.safetensors"));
        checkpoint::save(&model, &source.checkpoint, path)?;
        expected.push(format!("bits {number} {:?}", model.bits()?));
    }
    for isa in Isa::available() {
        let output = Command::new(std::env::current_exe()?)
            .args(["isa::child", "--exact", "--nocapture"])
            .env(FOLDER, source.beside(""))
            .env("DYNQUANT_ISA", isa.to_string())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{isa}: {text}");
        for (number, bits) in expected.iter().enumerate() {
            assert!(text.contains(bits), "{isa}: spec {number}");
            let read = |name: String| fs::read(source.beside(&name));
            let same = read(format!("{number}.safetensors"))?
                == read(format!("{number}-own.safetensors"))?;
            assert!(same, "{isa}: spec {number} is written otherwise");
        }
    }
    Ok(())
}
