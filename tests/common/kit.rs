//! What most tests use: names of candle and of the library, files, tensors and messages of errors.
#![allow(dead_code, unused_imports, missing_docs, reason = "each test uses its part")]

pub use std::collections::HashMap;
pub use std::fs;
pub use std::path::{Path, PathBuf};

pub use anyhow::{Context, Result};
pub use candle_core::{D, DType, Device, IndexOp, Module, Tensor, Var};
pub use candle_dynquant::checkpoint::{Plan, Saved};
pub use candle_dynquant::observer::{
    CustomObserver, Observer, ObserverConfig, ObserverKind, WeightQParams, ZeroPoints,
};
pub use candle_dynquant::ops::{Mask, Precision};
pub use candle_dynquant::{
    Arithmetic, Checkpoint, DynamicConfig, Equalization, EqualizeReport, ErrorKind,
    FusedActivation, Granularity, GroupConfig, GroupScheme, HalfType, IntType, Layer, LayerKind,
    LeftReason, OnnxRuntimeOptions, Outcome, QConfig, QConfigSpec, QDType, QScheme, QTable,
    QWeight, Quantizable, Report, Tap, TuningConfig, TuningOutcome, WeightDType, WeightInfo,
    checkpoint, equalize, inspect, nn, ops, quantize_dynamic, tune,
};
pub use candle_dynquant_support::{repository, rows};
pub use candle_nn::{VarBuilder, VarMap};
pub use serde_json::{Value, json};

use std::fmt::Display;

use tempfile::TempDir;

/// A new folder, removed when its guard is dropped, and the paths of these names in it.
pub fn paths<const N: usize>(names: [&str; N]) -> (TempDir, [PathBuf; N]) {
    let dir = tempfile::tempdir().expect("a folder");
    let paths = names.map(|name| dir.path().join(name));
    (dir, paths)
}

/// `int8` for layers of any size: those of tests are small.
pub fn all_int8() -> QConfigSpec {
    QConfigSpec::int8().min_params(0)
}

/// Checks that a spec reads back as it is written.
#[track_caller]
pub fn assert_reads_back(spec: &QConfigSpec) {
    let yaml = spec.to_yaml().expect("writes");
    assert_eq!(QConfigSpec::from_yaml(&yaml).expect(&yaml), *spec, "{yaml}");
    let json = spec.to_json().expect("writes");
    assert_eq!(QConfigSpec::from_json(&json).expect(&json), *spec, "{json}");
}

/// Quantizes a checkpoint without a model.
pub fn convert(source: &Checkpoint, spec: &QConfigSpec, out: &Path) -> candle_dynquant::Result<()> {
    checkpoint::quantize(source, spec, out, |_| ())
}

/// Quantizes a model of a checkpoint and saves it.
pub fn save_quantized<M: Quantizable>(
    model: &mut M,
    spec: &QConfigSpec,
    source: &Checkpoint,
    out: &Path,
) -> candle_dynquant::Result<Saved> {
    quantize_dynamic(model, spec)?;
    checkpoint::save(model, source, out)
}

/// What makes the weights that layers ask for.
pub fn new_vb() -> VarBuilder<'static> {
    VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu)
}

/// What layers in f32 are loaded with.
pub fn vb_of(checkpoint: &Checkpoint) -> VarBuilder<'static> {
    checkpoint.var_builder(DType::F32, &Device::Cpu)
}

/// The same of a path.
pub fn open(path: impl AsRef<Path>) -> candle_dynquant::Result<VarBuilder<'static>> {
    Ok(vb_of(&Checkpoint::open(path)?))
}

/// A float file that is open, and where a model of it is saved.
pub struct Source {
    dir: TempDir,
    pub path: PathBuf,
    pub checkpoint: Checkpoint,
    pub vb: VarBuilder<'static>,
    pub out: PathBuf,
}

impl Source {
    /// A float file or folder in a folder of its own.
    pub fn new(dir: TempDir, path: PathBuf) -> candle_dynquant::Result<Self> {
        let (out, checkpoint) = (dir.path().join("out"), Checkpoint::open(&path)?);
        Ok(Self { dir, vb: vb_of(&checkpoint), path, checkpoint, out })
    }

    pub fn of<const N: usize>(tensors: [(&str, Tensor); N]) -> candle_dynquant::Result<Self> {
        Self::of_map(&HashMap::from(tensors))
    }

    pub fn of_map<K: AsRef<str> + Ord + Display>(
        tensors: &HashMap<K, Tensor>,
    ) -> candle_dynquant::Result<Self> {
        let (dir, [path]) = paths(["float"]);
        candle_core::safetensors::save(tensors, &path)?;
        Self::new(dir, path)
    }

    pub fn random<const N: usize>(shapes: [(&str, &[usize]); N]) -> candle_dynquant::Result<Self> {
        Self::of(shapes.map(|(name, shape)| (name, random(shape))))
    }

    /// A folder with a configuration.
    pub fn folder(config: impl AsRef<[u8]>, shapes: &[(&str, &[usize])]) -> Result<Self> {
        let (dir, [path]) = paths(["float"]);
        let tensors = shapes.iter().map(|(name, shape)| (*name, random(shape)));
        fs::create_dir(&path)?;
        fs::write(path.join("config.json"), config)?;
        let tensors = tensors.collect::<HashMap<_, _>>();
        candle_core::safetensors::save(&tensors, path.join("model.safetensors"))?;
        Ok(Self::new(dir, path)?)
    }

    /// Another path in the folder.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn save<M: Quantizable>(&self, model: &M) -> candle_dynquant::Result<Saved> {
        checkpoint::save(model, &self.checkpoint, &self.out)
    }

    /// Quantizes a model and saves it.
    pub fn quantize<M: Quantizable>(
        &self,
        model: &mut M,
        spec: &QConfigSpec,
    ) -> candle_dynquant::Result<Saved> {
        save_quantized(model, spec, &self.checkpoint, &self.out)
    }

    /// Quantizes the file without a model; also what these names mean in [`Plan::new`].
    pub fn convert(&self, spec: &QConfigSpec, linears: &[&str]) -> candle_dynquant::Result<()> {
        self.plan(spec, linears)?.write(&self.checkpoint, &self.out, |_| ())
    }

    pub fn plan(&self, spec: &QConfigSpec, linears: &[&str]) -> candle_dynquant::Result<Plan> {
        let linears: Vec<_> = linears.iter().map(|name| (*name).to_owned()).collect();
        Plan::new(&self.checkpoint, spec, &linears, &[])
    }

    /// What was saved.
    pub fn saved(&self) -> candle_dynquant::Result<Checkpoint> {
        Checkpoint::open(&self.out)
    }

    pub fn saved_vb(&self) -> candle_dynquant::Result<VarBuilder<'static>> {
        open(&self.out)
    }
}

/// Whether a layer multiplies by a quantized weight.
pub fn is_quantized(layer: &nn::Linear) -> bool {
    layer.projection().qweight().is_some()
}

/// Writes a file of float tensors.
pub fn write<const N: usize>(path: &Path, tensors: [(&str, Tensor); N]) -> candle_core::Result<()> {
    candle_core::safetensors::save(&HashMap::from(tensors), path)
}

/// The folder that `variable` names; prints how to get it and returns `None` if it is not set.
pub fn model_folder(variable: &str, script: &str) -> Option<PathBuf> {
    let dir = std::env::var_os(variable);
    if dir.is_none() {
        println!("skipped: set {variable} to the folder that scripts/{script} makes");
    }
    dir.map(Into::into)
}

/// The JSON of a file.
pub fn read_json(path: impl AsRef<Path>) -> Result<Value> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Normally distributed numbers.
pub fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1., shape, &Device::Cpu).expect("numbers")
}

/// The elements of a tensor of floats.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    let floats = tensor.to_dtype(DType::F32).and_then(|floats| floats.flatten_all());
    floats.and_then(|floats| floats.to_vec1()).expect("floats")
}

/// The results of a function for several tensors.
pub fn each<const N: usize>(
    tensors: [&Tensor; N],
    f: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
) -> candle_core::Result<[Tensor; N]> {
    let results = tensors.into_iter().map(f).collect::<candle_core::Result<Vec<_>>>()?;
    Ok(results.try_into().expect("as many"))
}

/// The SQNR in dB.
pub fn decibels(expected: &Tensor, got: &Tensor) -> candle_dynquant::Result<f64> {
    let mut deviation = inspect::Deviation::default();
    deviation.add(expected, got)?;
    Ok(deviation.sqnr_db())
}

/// The bits of the elements of a tensor of floats.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    values(tensor).into_iter().map(f32::to_bits).collect()
}

/// The message of an error.
#[derive(Clone, Debug)]
pub struct Fault(String);

/// The error that a result must be.
#[track_caller]
pub fn fault<T>(result: Result<T, impl Display>) -> Fault {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => Fault(error.to_string()),
    }
}

impl Fault {
    #[track_caller]
    pub fn has(self, part: impl AsRef<str>) -> Self {
        let part = part.as_ref();
        assert!(self.0.contains(part), "expected {part:?} in {:?}", self.0);
        self
    }

    #[track_caller]
    pub fn has_all(self, parts: &[&str]) -> Self {
        parts.iter().fold(self, |fault, part| fault.has(part))
    }

    #[track_caller]
    pub fn starts(self, start: impl AsRef<str>) -> Self {
        let start = start.as_ref();
        assert!(self.0.starts_with(start), "expected {start:?} at the start of {:?}", self.0);
        self
    }

    #[track_caller]
    pub fn ends(self, end: impl AsRef<str>) -> Self {
        let end = end.as_ref();
        assert!(self.0.ends_with(end), "expected {end:?} at the end of {:?}", self.0);
        self
    }

    /// Checks that it is short, whatever its cause contains.
    #[track_caller]
    pub fn short(self) {
        assert!(self.0.len() < 1_000, "{} bytes", self.0.len());
    }

    #[track_caller]
    pub fn is(self, message: impl AsRef<str>) {
        assert_eq!(self.0, message.as_ref());
    }
}
