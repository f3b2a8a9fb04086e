//! GPTQ's and AWQ's weights of 4 bits: `qweight` and `qzeros` I32, eight codes a number, and
//! `scales`, all with outputs as columns. GPTQ packs a weight along its inputs and has `g_idx`, the
//! group of each; AWQ packs along outputs, interleaved.

use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

use super::super::files::Files;
use super::super::header::{Axis, Encoding, Entry, Packing, invalid};
use super::super::scheme::is_in_order;
use super::layout::{Found, module, of_module, tensor, unsupported};
use crate::error::Result;
use crate::weight::{G_IDX, SCALE, ZERO_POINT};

const QWEIGHT: &str = "qweight";
const ORDER: &str = "g_idx";
/// Codes in a number.
const CODES: usize = 8;
/// The zero point of symmetric codes.
const SYMMETRIC: i8 = 8;

#[derive(Default, Deserialize)]
struct Config {
    bits: Option<u64>,
    sym: Option<bool>,
    /// Settings of single modules.
    dynamic: Option<Value>,
    /// GPTQ's name of the format.
    checkpoint_format: Option<String>,
    /// AWQ's.
    version: Option<String>,
}

/// The library that wrote the files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Awq,
    Gptq {
        /// The number that is subtracted from zero points where they are stored; `None` where no
        /// configuration says it.
        less: Option<i8>,
        /// Of all weights; `None` where that is not known.
        symmetric: Option<bool>,
    },
}

pub fn find_awq(files: &Files, config: &Value) -> Result<Found> {
    let read = Config::read(config, "format of AWQ")?;
    let version = read.version.or(read.checkpoint_format);
    let version = version.map(|version| version.to_lowercase());
    match version.as_deref().unwrap_or("gemm") {
        "gemm" => find(files, config.is_null(), Library::Awq),
        got => Err(unsupported("version of AWQ", "gemm", "", got)),
    }
}

pub fn find_gptq(files: &Files, config: &Value) -> Result<Found> {
    let read = Config::read(config, "format of GPTQ")?;
    let less = match read.checkpoint_format.as_deref() {
        None => (!config.is_null()).then_some(1),
        Some("gptq") => Some(1),
        Some("gptq_v2") => Some(0),
        Some(got) => {
            let known = "gptq or gptq_v2";
            return Err(unsupported("checkpoint_format of GPTQ", known, "", got));
        }
    };
    let symmetric = match read.dynamic {
        None => read.sym,
        Some(_) => read.sym.filter(|symmetric| !symmetric),
    };
    find(files, config.is_null(), Library::Gptq { less, symmetric })
}

impl Config {
    fn read(config: &Value, format: &'static str) -> Result<Self> {
        let config = Option::<Self>::deserialize(config);
        let config =
            config.map_err(|e| unsupported(format, "its configuration", "", &e.to_string()))?;
        let config = config.unwrap_or_default();
        match config.bits {
            None | Some(4) => Ok(config),
            Some(bits) => Err(unsupported(format, "4 bits", "", &format!("{bits} bits"))),
        }
    }
}

/// The weights of a library, which the tensors tell if no configuration does.
fn find(files: &Files, by_tensors: bool, library: Library) -> Result<Found> {
    let mut found = Found::default();
    for (name, _, entry) in files.tensors() {
        let Some(module) = module(name, QWEIGHT) else {
            continue;
        };
        let of = |last| of_module(module, last);
        let scales = files.find(&of("scales")).map(|(_, scales)| scales);
        // Others have tensors of that name, too.
        if entry.dtype != Dtype::I32 && scales.is_none() {
            continue;
        }
        let has_order = files.find(&of(ORDER)).is_some();
        let along_inputs = scales.is_some_and(|scales| scales.shape.last() == entry.shape.last());
        if by_tensors && (has_order || along_inputs) != (library != Library::Awq) {
            continue;
        }
        weight(files, module, library, &mut found)?;
    }
    Ok(found)
}

fn weight(files: &Files, module: &str, library: Library, found: &mut Found) -> Result<()> {
    let [codes, zeros, scales, order] =
        [QWEIGHT, "qzeros", "scales", ORDER].map(|last| of_module(module, last));
    let of_scales = tensor(files, &scales)?;
    of_scales.check_float(&scales)?;
    let (groups, n) = match of_scales.shape[..] {
        [groups, n] if groups > 0 => (groups, n),
        ref got => {
            let expected = "[groups, out_features]";
            return Err(invalid(&scales, expected, format!("{got:?}")));
        }
    };
    let is_gptq = library != Library::Awq;
    let of_codes = tensor(files, &codes)?;
    let rows = of_codes.shape.first().copied().unwrap_or_default();
    let (k, words) = if is_gptq {
        (rows.saturating_mul(CODES), [rows, n])
    } else {
        (rows, [rows, n.div_ceil(CODES)])
    };
    let what = ", codes of 4 bits";
    of_codes.check(&codes, Dtype::I32, &words, what)?;
    let words = [groups, n.div_ceil(CODES)];
    tensor(files, &zeros)?.check(&zeros, Dtype::I32, &words, what)?;
    let weight = of_module(module, "weight");
    if is_gptq && is_in_order(files, &order, groups, k)? {
        found.settings.push(order);
    } else if is_gptq {
        let entry = tensor(files, &order)?.clone();
        found
            .packed
            .push((order, format!("{weight}{G_IDX}"), entry));
    }
    if k == 0 || !k.is_multiple_of(groups) {
        let expected = format!("groups of equally many of {k} inputs");
        return Err(invalid(&scales, expected, groups));
    }
    let packing = |axis, offset| Packing {
        axis,
        transposed: true,
        interleaved: !is_gptq,
        offset,
    };
    match zero_points(files, &zeros, [n, groups], library, packing(Axis::Rows, 0))? {
        None => found.settings.push(zeros),
        Some(offset) => {
            let entry = packed(files, &zeros, [n, groups], packing(Axis::Rows, offset))?;
            found
                .packed
                .push((zeros, format!("{weight}{ZERO_POINT}"), entry));
        }
    }
    let entry = Entry {
        shape: vec![n, groups],
        encoding: Encoding::Transposed,
        ..of_scales.clone()
    };
    found
        .packed
        .push((scales, format!("{weight}{SCALE}"), entry));
    let axis = if is_gptq { Axis::Columns } else { Axis::Rows };
    let entry = packed(files, &codes, [n, k], packing(axis, 8))?;
    found.packed.push((codes, weight, entry));
    Ok(())
}

fn packed(files: &Files, name: &str, shape: [usize; 2], packing: Packing) -> Result<Entry> {
    Ok(Entry {
        dtype: Dtype::I8,
        shape: shape.to_vec(),
        encoding: Encoding::Packed(packing),
        ..tensor(files, name)?.clone()
    })
}

/// By how much stored zero points exceed zero points of signed codes; `None` where these are 0.
///
/// Files of GPTQ that say `gptq` may be `gptq_v2`: symmetric ones show what they are.
fn zero_points(
    files: &Files,
    name: &str,
    shape: [usize; 2],
    library: Library,
    packing: Packing,
) -> Result<Option<i8>> {
    let entry = packed(files, name, shape, packing)?;
    let (shard, _) = files.get(name, "the zero points")?;
    let stored = shard.codes(&entry, 0..entry.elements())?;
    let uniform = stored.first().copied();
    let uniform = uniform.filter(|first| stored.iter().all(|own| own == first));
    let less = match library {
        Library::Awq => 0,
        Library::Gptq { less, symmetric } => match (uniform, less, symmetric) {
            (Some(7 | SYMMETRIC), _, Some(true))
            | (Some(SYMMETRIC), Some(1), None)
            | (Some(7 | SYMMETRIC), None, _) => return Ok(None),
            (_, Some(less), _) => less,
            (_, None, _) => {
                let expected = "checkpoint_format in config.json, as zero points differ";
                return Err(unsupported("format of GPTQ", expected, name, "none"));
            }
        },
    };
    if let Some(index) = stored.iter().position(|own| own + less > 15) {
        let got = format!("{} at index {index}", stored[index] + less);
        return Err(invalid(name, "zero points of 0 to 15", got));
    }
    Ok((uniform != Some(SYMMETRIC - less)).then_some(SYMMETRIC - less))
}
