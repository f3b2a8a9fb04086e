//! A checkpoint with some of its tensors replaced: a list of what is written, and the loop that
//! writes it, file by file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_dynquant_io::input;
use candle_dynquant_io::output::{NewFile, NewFolder};
use safetensors::Dtype;
use serde_json::{Value, json};

use super::entry::with_entry;
use super::writer::{Planned, Writer, packed, writing};
use crate::checkpoint::read::{
    Axis, CONFIG, Encoding, Entry, INDEX, MAX_CONFIG, Opened, Packing, Precisions, Shard, View,
    is_of_model, read_small, record,
};
use crate::error::{Error, Result};
use crate::weight::{Format, PACKED, SHAPE};

/// How deep the folders are from which files are copied.
const MAX_DEPTH: usize = 8;

pub struct Contents<'a> {
    pub source: &'a Opened,
    /// The tensors in the place of each tensor of the source, in the file that has it; empty for a
    /// tensor that is left out.
    pub tensors: BTreeMap<&'a str, Vec<Output<'a>>>,
    /// The formats of all quantized weights of the new checkpoint, by name.
    pub formats: BTreeMap<String, Format>,
    /// The weights that are parts of tensors, by name; parts that are not written are left out.
    pub views: BTreeMap<String, View>,
    /// Attention of fewer bits than float32, by name.
    pub attention: Precisions,
    pub config: Option<Value>,
}

/// Some tensors, and where their bytes are from.
pub enum Output<'a> {
    /// The source's tensor as it is.
    Copied,
    /// Others, all of which the function writes.
    New(Vec<Planned>, Write<'a>),
}

type Write<'a> = Box<dyn Fn(&mut Writer<'_>) -> Result<()> + 'a>;

impl Output<'_> {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Copied => 0,
            Self::New(tensors, _) => tensors.iter().filter_map(Planned::bytes).sum(),
        }
    }
}

/// Writes a checkpoint: a file for a file, a folder for a folder, with a shard for a
/// shard and all other files but hidden ones and the model's weights in other forms. `progress` is
/// called after each tensor of the source, with its bytes.
pub fn rewrite(contents: &Contents<'_>, out: &Path, mut progress: impl FnMut(u64)) -> Result<()> {
    let files = &contents.source.files;
    let real = |path: &Path| path.canonicalize().ok();
    let input = files.folder.as_deref().unwrap_or(files.path());
    let is_on_disk = files.shards.first().is_none_or(|shard| shard.is_on_disk);
    if is_on_disk && real(out).is_some_and(|out| real(input) == Some(out)) {
        let error = Error::argument("output", "another place than the source's", "the same");
        return Err(error.in_file(out));
    }
    let mut write = || match &files.folder {
        Some(folder) => {
            let new = NewFolder::beside(out).map_err(writing)?;
            // Neither the old output is copied nor, through a link, a folder around it.
            let mut around: Vec<_> = [folder, out].into_iter().filter_map(real).collect();
            fill(contents, folder, new.path(), &mut around, &mut progress)?;
            new.put().map_err(writing)
        }
        None => {
            let mut file = NewFile::beside(out).map_err(writing)?;
            write_shard(contents, 0, file.file_mut(), &mut progress)?;
            file.put().map_err(writing)
        }
    };
    write().map_err(|e| e.in_file(out))
}

fn fill(
    contents: &Contents<'_>,
    folder: &Path,
    new: &Path,
    around: &mut Vec<PathBuf>,
    progress: &mut impl FnMut(u64),
) -> Result<()> {
    let files = &contents.source.files;
    let shards: Vec<_> = files.shards.iter().filter_map(|shard| shard.path.file_name()).collect();
    copy_others(folder, new, 0, &shards, around)?;
    let mut weight_map = BTreeMap::new();
    let mut bytes = 0;
    for (number, shard) in files.shards.iter().enumerate() {
        let name = shard.path.file_name().unwrap_or(shard.path.as_os_str());
        let mut file = File::create(new.join(name)).map_err(writing)?;
        for (tensor, of_tensor) in write_shard(contents, number, &mut file, progress)? {
            weight_map.insert(tensor, name.to_string_lossy().into_owned());
            bytes += of_tensor;
        }
    }
    if files.index.is_some() {
        let index = json!({"metadata": {"total_size": bytes}, "weight_map": weight_map});
        write_text(&new.join(INDEX), format!("{index:#}\n").as_bytes())?;
    }
    let [from, to] = [folder, new].map(|folder| folder.join(CONFIG));
    write_config(&from, &to, contents.config.as_ref())
}

/// Writes one file; the tensors that it has now, and their bytes.
fn write_shard(
    contents: &Contents<'_>,
    number: usize,
    file: &mut File,
    progress: &mut impl FnMut(u64),
) -> Result<BTreeMap<String, u64>> {
    let files = &contents.source.files;
    let shard = &files.shards[number];
    let is_here = |(name, _): &(&String, &Entry)| files.number(name) == Some(number);
    let tensors = || shard.header.tensors.iter().filter(is_here);
    let mut planned = Vec::new();
    for (name, entry) in tensors() {
        for output in &contents.tensors[&**name] {
            match output {
                Output::Copied => planned.extend(copied(contents.source, name, entry)),
                Output::New(tensors, _) => planned.extend(tensors.iter().cloned()),
            }
        }
    }
    let sizes = planned.iter().map(|p| (p.name.clone(), p.bytes().unwrap_or_default())).collect();
    let mut metadata = shard.header.metadata.clone();
    let formats = &contents.formats;
    let here = planned
        .iter()
        .filter_map(|p| formats.get_key_value(p.name.strip_suffix(PACKED).unwrap_or(&p.name)))
        .map(|(name, format)| (&**name, *format));
    let mut views = contents.views.clone();
    let is_planned = |name: &str| planned.iter().any(|tensor| tensor.name == name);
    views.retain(|name, _| is_planned(name) || is_planned(&format!("{name}{PACKED}")));
    // The first file has what is in none.
    let attention = match number {
        0 => contents.attention.clone(),
        _ => Precisions::new(),
    };
    let is_empty = formats.is_empty() && attention.is_empty();
    let record = record::write(here, views, attention);
    if is_empty {
        metadata.remove(record::KEY)
    } else {
        metadata.insert(record::KEY.into(), record)
    };
    // transformers reads no file without it.
    metadata.entry("format".into()).or_insert_with(|| "pt".into());
    let mut writer = Writer::new(file, planned, &metadata)?;
    for (name, entry) in tensors() {
        for output in &contents.tensors[&**name] {
            match output {
                Output::Copied => copy(contents.source, shard, (name, entry), &mut writer)?,
                Output::New(_, write) => write(&mut writer)?,
            }
        }
        progress(entry.bytes);
    }
    writer.finish()?;
    Ok(sizes)
}

/// The tensors of the file that a tensor of the source stands for.
fn copied(source: &Opened, name: &str, entry: &Entry) -> Vec<Planned> {
    let (true, &[n, k]) = (entry.encoding.is_int4(), &entry.shape[..]) else {
        return vec![Planned::new(name, entry.dtype, &entry.shape)];
    };
    match axis(source, name) {
        Axis::Columns => vec![
            Planned::new(&format!("{name}{PACKED}"), Dtype::I32, &[n, k.div_ceil(8)]),
            Planned::new(&format!("{name}{SHAPE}"), Dtype::I64, &[2]),
        ],
        Axis::Rows => vec![Planned::new(name, Dtype::I32, &[n.div_ceil(8), k])],
    }
}

/// Writes them as they are, packed codes in the layout of compressed-tensors.
fn copy(
    source: &Opened,
    shard: &Shard,
    (name, entry): (&str, &Entry),
    to: &mut Writer<'_>,
) -> Result<()> {
    let (true, &[n, k]) = (entry.encoding.is_int4(), &entry.shape[..]) else {
        return shard.copy(entry, |chunk| to.write(name, chunk));
    };
    let axis = axis(source, name);
    let mut tensor = name.to_owned();
    if axis == Axis::Columns {
        let sizes = [n, k].map(|size| (size as i64).to_le_bytes());
        to.write(&format!("{name}{SHAPE}"), sizes.as_flattened())?;
        tensor.push_str(PACKED);
    }
    if entry.encoding == Encoding::Packed(Packing::plain(axis, 4)) {
        return shard.copy(entry, |chunk| to.write(&tensor, chunk));
    }
    to.write(&tensor, &packed(&shard.codes(entry, 0..n * k)?, [n, k], axis))
}

/// The axis along which compressed-tensors packs a weight, or zero points.
fn axis(source: &Opened, name: &str) -> Axis {
    if source.weights.contains_key(name) { Axis::Columns } else { Axis::Rows }
}

/// Copies the files of a folder, such as a tokenizer's, and of its folders, but hidden ones, the
/// model's weights in other forms, and quantized checkpoints.
///
/// None of `around` is copied, to which the folders on the way are added.
fn copy_others(
    from: &Path,
    to: &Path,
    depth: usize,
    shards: &[&OsStr],
    around: &mut Vec<PathBuf>,
) -> Result<()> {
    let failed = Error::io("copy");
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let path = entry.path();
        let text = name.to_string_lossy();
        let is_config = depth == 0 && text == CONFIG;
        let is_own = depth == 0 && (is_of_model(&path) || shards.contains(&&*name));
        if text.starts_with('.') || is_own || is_config {
            continue;
        }
        // Through links, as the cache of the Hub has them.
        let meta = fs::metadata(&path).map_err(|e| failed(e).in_file(&path))?;
        let target = to.join(&name);
        if !meta.is_dir() {
            input::copy(&path, &target).map_err(|e| failed(e).in_file(&path))?;
            continue;
        }
        let real = path.canonicalize().map_err(failed)?;
        if around.contains(&real) || is_output(&path) {
            continue;
        }
        if depth == MAX_DEPTH {
            let expected = format!("at most {MAX_DEPTH} folders in each other");
            return Err(Error::malformed("folder", expected, "more").in_file(&path));
        }
        fs::create_dir(&target).map_err(failed)?;
        around.push(real);
        copy_others(&path, &target, depth + 1, shards, around)?;
        around.pop();
        // A folder of hidden files only; an empty folder is a module of sentence-transformers.
        if fs::read_dir(&path).map_err(failed)?.next().is_some() {
            let _ = fs::remove_dir(&target);
        }
    }
    Ok(())
}

/// Whether a folder is a quantized checkpoint of this library: an output beside which others are
/// written would be in each of them, with all that are in it.
fn is_output(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut shards = paths.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    shards.any(|path| {
        let shard = Shard::open(&path);
        shard.is_ok_and(|shard| shard.header.metadata.contains_key(record::KEY))
    })
}

/// The `config.json` with another entry for its quantization; none where there was none.
fn write_config(from: &Path, to: &Path, entry: Option<&Value>) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let read = || with_entry(&read_small(from, MAX_CONFIG)?, entry);
    write_text(to, &read().map_err(|e: Error| e.in_file(from))?)
}

fn write_text(path: &Path, text: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        std::io::Write::write_all(&mut file, text)?;
        file.sync_all()
    };
    write().map_err(|e| writing(e).in_file(path))
}
