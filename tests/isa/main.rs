//! The same bits on every instruction set and thread count, through the environment variables.
//!
//! `DYNQUANT_ISA` is read once a process, so each choice runs in a child: this test program
//! again, with only `child` selected.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::process::{Command, Output};

use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::Isa;
use candle_dynquant::{QConfigSpec, nn, quantize_dynamic};
use candle_dynquant_support::random::values;
use candle_nn::VarBuilder;

/// Set in the children.
const CHILD: &str = "DYNQUANT_TEST_CHILD";

fn tensor(shape: &[usize]) -> candle_core::Result<Tensor> {
    Tensor::from_vec(values(shape.iter().product(), 0), shape, &Device::Cpu)
}

/// A bidirectional LSTM and a GRU with sizes that fill no register.
fn recurrent() -> candle_core::Result<(nn::LSTM, nn::GRU)> {
    let (inputs, hidden) = (70, 131);
    let mut tensors = HashMap::new();
    for (name, gates) in [("lstm", 4), ("gru", 3)] {
        for side in ["", "_reverse"] {
            for (weight, columns) in [("ih", inputs), ("hh", hidden)] {
                let scaled = (tensor(&[gates * hidden, columns])? * 0.3)?;
                tensors.insert(format!("{name}.weight_{weight}_l0{side}"), scaled);
                let bias = tensor(&[gates * hidden])?;
                tensors.insert(format!("{name}.bias_{weight}_l0{side}"), bias);
            }
        }
    }
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let both = nn::RecurrentConfig { bidirectional: true, ..Default::default() };
    let lstm = nn::LSTM::new(inputs, hidden, both, vb.pp("lstm"))?;
    let gru = nn::GRU::new(inputs, hidden, Default::default(), vb.pp("gru"))?;
    Ok((lstm, gru))
}

/// The presets that multiply in the crate's kernels, in PyTorch's arithmetic, with the checksums of
/// their outputs: the same on x86-64 and AArch64. A change of arithmetic changes them.
const PRESETS: [(&str, &str); 3] = [
    ("int8", "d81a04d617748b7d"),
    ("default", "05fc01305669aa16"),
    ("per_channel", "bb7738a6092ac656"),
];

/// The instruction set that layers of each preset run on, and a checksum over the bits of outputs.
fn checksums() -> Result<Vec<(String, String)>, Box<dyn std::error::Error>> {
    let checksum = |sum: u64, bits: f32| sum.rotate_left(5) ^ u64::from(bits.to_bits());
    let sum_up = |sum, out: Tensor| -> candle_core::Result<u64> {
        let all = out.flatten_all()?.to_vec1()?;
        Ok(all.into_iter().fold(sum, checksum))
    };
    let mut all = Vec::new();
    for (preset, _) in PRESETS {
        let (mut sum, mut isa) = (0, String::new());
        for (m, k, n) in [(1, 768, 768), (1, 100, 257), (33, 129, 300), (128, 384, 384)] {
            let mut layer = nn::Linear::new(tensor(&[n, k])?, Some(tensor(&[n])?));
            isa = quantize_dynamic(&mut layer, &QConfigSpec::preset(preset)?)?.isa.to_string();
            sum = sum_up(sum, layer.forward(&tensor(&[m, k])?)?)?;
        }
        let mut recurrent = recurrent()?;
        quantize_dynamic(&mut recurrent, &QConfigSpec::preset(preset)?)?;
        // Enough sequences that their state is updated on several threads.
        let xs = tensor(&[7, 33, 70])?;
        let (lstm, _) = recurrent.0.forward(&xs, None)?;
        let (gru, _) = recurrent.1.forward(&xs, None)?;
        sum = sum_up(sum, Tensor::cat(&[lstm, gru], 2)?)?;
        all.push((isa, format!("{preset} {sum:016x}")));
    }
    let isa = Isa::active()?.to_string();
    let cases = cases::checksums()?.into_iter();
    all.extend(cases.map(|(name, sum)| (isa.clone(), format!("{name} {sum}"))));
    Ok(all)
}

/// The lines that are expected of every instruction set.
fn expected() -> Vec<String> {
    let cases = cases::CASES.iter().map(|(names, sum, _)| (cases::first(names), *sum));
    let all = PRESETS.into_iter().chain(cases);
    all.map(|(name, sum)| format!("{name} {sum}")).collect()
}

/// Prints the checksums, or the error.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    // With one test thread, its name is on the line before.
    println!();
    match checksums() {
        Ok(all) => {
            for (isa, checksum) in all {
                println!("bits isa {isa}\nbits {checksum}");
            }
        }
        Err(error) => println!("bits error {error}"),
    }
}

/// Runs without child processes on the instruction set that `DYNQUANT_ISA` names.
#[test]
fn bits_are_those_of_the_presets() {
    let got = checksums().expect("checksums");
    let isa = Isa::active().expect("an instruction set").to_string();
    println!("instruction set: {isa}");
    let expected = expected().into_iter();
    let expected: Vec<_> = expected.map(|line| (isa.clone(), line)).collect();
    assert_eq!(got, expected);
}

/// A command that runs this program, directly or under the emulator that cargo uses.
fn again() -> Command {
    let program = std::env::current_exe().expect("own path");
    let runner = if cfg!(all(target_arch = "aarch64", target_os = "linux")) {
        std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER")
    } else {
        Err(std::env::VarError::NotPresent)
    };
    let runner = runner.unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(emulator) = words.next() else {
        return Command::new(program);
    };
    let mut command = Command::new(emulator);
    command.args(words).arg(program);
    command
}

fn run_child(isa: Option<&str>, threads: &str) -> Output {
    let mut command = again();
    command.args(["child", "--exact", "--nocapture"]).env(CHILD, "1");
    command.env("RAYON_NUM_THREADS", threads).env("CANDLE_NUM_THREADS", threads);
    command.env_remove("DYNQUANT_ISA");
    if let Some(isa) = isa {
        command.env("DYNQUANT_ISA", isa);
    }
    let output = command.output().expect("the child runs");
    assert!(output.status.success(), "{isa:?} {threads}: {output:?}");
    output
}

fn lines(output: &Output, prefix: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|l| l.contains(prefix)).map(str::to_owned).collect()
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "no processes")]
fn bits_do_not_depend_on_isa_or_threads() {
    let expected: Vec<_> = expected().iter().map(|line| format!("bits {line}")).collect();
    let checksums = |output: &Output| -> Vec<String> {
        let all = lines(output, "bits ").into_iter();
        all.filter(|line| !line.starts_with("bits isa ")).collect()
    };
    let best = Isa::available().pop();
    for isa in Isa::available() {
        // The last two usually exceed the number of cores.
        let more = if Some(isa) == best { &["16", "64"][..] } else { &[] };
        for threads in ["1", "2", "7"].iter().chain(more) {
            let got = run_child(Some(isa.name()), threads);
            assert_eq!(checksums(&got), expected, "{isa} {threads}");
            assert!(lines(&got, "bits isa").iter().all(|l| l.ends_with(isa.name())), "{isa}");
        }
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "no processes")]
fn an_unknown_isa_is_an_error_message() {
    for name in ["sse9", "", "AVX2"] {
        let errors = lines(&run_child(Some(name), "1"), "bits error");
        assert_eq!(errors.len(), 1, "{name:?}");
        let quoted = format!("{name:?}");
        assert!(errors[0].contains("DYNQUANT_ISA") && errors[0].contains(&quoted), "{errors:?}");
    }
}
