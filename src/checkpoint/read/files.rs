//! The files of a checkpoint: one, the shards of an index, or a folder's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use candle_dynquant_io::{Unexpected, format, input, output::folder_of};
use serde::Deserialize;
use serde::de::{Error as _, MapAccess};

use super::header::{Encoding, Entry, Keyed, UniqueMap, invalid, parse_file};
use super::shard::Shard;
use crate::error::{Error, Result};
use crate::words::brief;

const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
pub const CONFIG: &str = "config.json";
/// Files of an adapter, which a model is not computed without.
const ADAPTERS: [&str; 3] =
    ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"];
const MAX_INDEX: u64 = 100_000_000;

/// The files, and which of them has a tensor.
#[derive(Debug)]
pub struct Files {
    pub folder: Option<PathBuf>,
    /// The index, if the tensors are in shards.
    pub index: Option<PathBuf>,
    pub shards: Vec<Shard>,
    tensors: BTreeMap<String, usize>,
}

impl Files {
    pub fn open(path: &Path) -> Result<Self> {
        let opening = |error| Error::io("open")(error).in_file(path);
        if fs::metadata(path).map_err(opening)?.is_dir() {
            if let Some(name) = ADAPTERS.iter().find(|name| path.join(name).exists()) {
                let expected = "a model alone; merge the adapter into it first";
                return Err(Error::malformed("folder", expected, *name).in_file(path));
            }
            let (single, index) = (path.join(SINGLE), path.join(INDEX));
            let files = match (single.exists(), index.exists()) {
                (true, _) => Self::of_file(&single),
                (false, true) => Self::of_index(&index),
                (false, false) => Self::of_file(&only_file(path)?),
            };
            return Ok(Self { folder: Some(path.to_owned()), ..files? });
        }
        if path.extension().is_some_and(|e| e == "json") {
            Self::of_index(path)
        } else {
            Self::of_file(path)
        }
    }

    fn of_file(path: &Path) -> Result<Self> {
        Ok(Self::of_shard(Shard::open(path)?))
    }

    /// A file in memory; `path` is for errors.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        Ok(Self::of_shard(Shard::from_bytes(path, bytes)?))
    }

    fn of_shard(shard: Shard) -> Self {
        Self {
            folder: None,
            index: None,
            tensors: shard.header.tensors.keys().map(|k| (k.clone(), 0)).collect(),
            shards: vec![shard],
        }
    }

    fn of_index(path: &Path) -> Result<Self> {
        let folder = folder_of(path);
        let weight_map = read_index(path).map_err(|e| e.in_file(path))?;
        let names: BTreeSet<&FileName> = weight_map.values().collect();
        let mut shards = Vec::with_capacity(names.len());
        let mut numbers = BTreeMap::new();
        for FileName(name) in names {
            numbers.insert(name.clone(), shards.len());
            shards.push(Shard::open(&folder.join(name))?);
        }
        let mut tensors = BTreeMap::new();
        for (tensor, FileName(name)) in weight_map {
            let number = numbers[&name];
            if !shards[number].header.tensors.contains_key(&tensor) {
                let expected = format!("it in {name:?}, as the index says");
                return Err(invalid(&tensor, expected, "no such tensor").in_file(path));
            }
            tensors.insert(tensor, number);
        }
        Ok(Self { folder: Some(folder.to_owned()), index: Some(path.to_owned()), shards, tensors })
    }

    pub fn find(&self, name: &str) -> Option<(&Shard, &Entry)> {
        let shard = &self.shards[*self.tensors.get(name)?];
        Some((shard, shard.header.tensors.get(name)?))
    }

    /// A tensor that must be there, and the file that has it.
    pub fn get(&self, name: &str, expected: impl Display) -> Result<(&Shard, &Entry)> {
        let missing = || invalid(name, expected, "no such tensor");
        self.find(name).ok_or_else(missing)
    }

    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Shard, &Entry)> {
        let names = self.tensors.keys();
        names.filter_map(|name| self.find(name).map(|(shard, entry)| (&**name, shard, entry)))
    }

    pub fn below<'a>(&'a self, start: &str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let names = self.tensors.range(start.to_owned()..).map(|(name, _)| &**name);
        let names = names.take_while(move |name| name.starts_with(start));
        names.filter_map(|name| Some((name, self.find(name)?.1)))
    }

    /// The number of the shard that has a tensor.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.tensors.get(name).copied()
    }

    pub fn rename(&mut self, from: &str, to: &str, encoding: Encoding) -> Result<()> {
        match self.find(from) {
            Some((_, entry)) => self.replace(from, to, Entry { encoding, ..entry.clone() }),
            None => Ok(()),
        }
    }

    /// Gives a tensor another name and entry.
    ///
    /// # Errors
    /// When there is another tensor of that name.
    pub fn replace(&mut self, from: &str, to: &str, entry: Entry) -> Result<()> {
        if from != to && self.tensors.contains_key(to) {
            let got = format!("{:?} too", brief(to, 200));
            return Err(invalid(from, "one tensor of that name", got));
        }
        if let Some(number) = self.tensors.remove(from)
            && self.shards[number].header.tensors.remove(from).is_some()
        {
            self.shards[number].header.tensors.insert(to.to_owned(), entry);
            self.tensors.insert(to.to_owned(), number);
        }
        Ok(())
    }

    /// Removes a tensor that belongs to none of the model.
    pub fn remove(&mut self, name: &str) {
        if let Some(number) = self.tensors.remove(name) {
            self.shards[number].header.tensors.remove(name);
        }
    }

    pub fn forget(&mut self, key: &str) {
        for shard in &mut self.shards {
            shard.header.metadata.remove(key);
        }
    }

    /// The path for errors.
    pub fn path(&self) -> &Path {
        let file = || &self.shards[0].path;
        self.index.as_ref().unwrap_or_else(file)
    }
}

/// Extensions of files that hold weights, in other forms than safetensors.
const WEIGHTS: [&str; 10] =
    ["bin", "pt", "pth", "npz", "h5", "msgpack", "onnx", "gguf", "ot", "ckpt"];

/// Names by which libraries find the weights of a model's folder, each with what follows it.
const MODELS: [&str; 6] =
    ["model", "pytorch_model", "tf_model", "flax_model", "rust_model", "consolidated"];
/// Folders with the same model for other runtimes.
const RUNTIMES: [&str; 3] = ["onnx", "openvino", "coreml"];

fn is_weights(path: &Path) -> bool {
    path.extension().is_some_and(|extension| WEIGHTS.iter().any(|known| extension == *known))
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "safetensors")
}

/// Whether a file or folder of a model's folder is its weights, as safetensors or in another form:
/// not the weights of a part of it, such as a voice or an adapter.
pub fn is_of_model(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if RUNTIMES.contains(&&*name) {
        return true;
    }
    let rest = MODELS.iter().filter_map(|known| name.strip_prefix(known));
    let is_named = rest.into_iter().any(|rest| rest.starts_with(['.', '-', '_']));
    let is_file = is_weights(path) || is_safetensors(path) || name.ends_with(".index.json");
    is_named && is_file
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let reading = |error| Error::io("read the folder")(error).in_file(folder);
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(reading)? {
        let path = entry.map_err(reading)?.path();
        if is_safetensors(&path) {
            found.push(path);
        } else if is_weights(&path) {
            others.push(path);
        }
    }
    found.sort();
    others.sort();
    match &found[..] {
        [path] => Ok(path.clone()),
        _ => {
            let names = |paths: &[PathBuf]| {
                let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
                brief(&names.collect::<Vec<_>>().join(", "), 300)
            };
            Err(Error::malformed(
                "folder",
                format!("{SINGLE}, {INDEX}, or one other safetensors file"),
                match (&found[..], &others[..]) {
                    ([], []) => "none".into(),
                    ([], [first, ..]) => {
                        let mut begin = Vec::new();
                        let read = input::open(first)
                            .map(|file| file.take(format::LENGTH as u64).read_to_end(&mut begin));
                        let cure = read.ok().and_then(|_| format::detect(&begin));
                        let cure = cure.map(|format| format!(": {format}"));
                        format!("none, but {}{}", names(&others), cure.unwrap_or_default())
                    }
                    (found, _) => names(found),
                },
            )
            .in_file(folder))
        }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<FileName>,
}

/// A name without a folder: an index has no business elsewhere.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FileName(String);

impl Keyed for FileName {
    const MAP: &'static str = "an object from tensors to files";

    fn read<'de, A: MapAccess<'de>>(_: &str, from: &mut A) -> Result<Self, A::Error> {
        /// Bytes of a name that file systems allow.
        const MAX: usize = 255;
        let file: String = from.next_value()?;
        let name = Path::new(&file).file_name();
        if name.is_some_and(|known| known == file.as_str()) && file.len() <= MAX {
            return Ok(Self(file));
        }
        let file = brief(&file, 100);
        Err(A::Error::custom(format_args!("{file:?}, which is no file name without a folder")))
    }
}

/// The file of each tensor; there is at least one tensor.
fn read_index(path: &Path) -> Result<BTreeMap<String, FileName>> {
    let malformed =
        |got| Error::malformed("index", "an object `weight_map` from tensors to files", got);
    let Index { weight_map } = parse_file(read_small(path, MAX_INDEX)?).map_err(malformed)?;
    match weight_map.0 {
        map if map.is_empty() => Err(malformed("no tensors".into())),
        map => Ok(map.into_iter().collect()),
    }
}

pub fn read_small(path: &Path, max: u64) -> Result<Vec<u8>> {
    input::read(path, max).map_err(|error| match Unexpected::behind(&error) {
        Some(Unexpected { expected, got }) if error.kind() == ErrorKind::FileTooLarge => {
            Error::malformed("file", expected.clone(), got.clone())
        }
        _ => Error::io("read")(error),
    })
}
