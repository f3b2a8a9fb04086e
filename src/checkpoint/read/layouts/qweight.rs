//! GPTQ's and AWQ's weights: `qweight` and `qzeros` I32, eight codes of 4 bits a number or four of
//! 8, and `scales`, all with outputs as columns. GPTQ packs a weight along its inputs and has
//! `g_idx`, the group of each; AWQ packs along outputs, interleaved. AutoRound writes either, without
//! `g_idx` where groups are in order.

use safetensors::Dtype;
use serde_json::Value;

use super::super::files::Files;
use super::super::header::{Axis, Encoding, Entry, Packing, invalid};
use super::super::weights::is_in_order;
use super::layout::{Found, module, of_module, tensor, unsupported};
use crate::error::Result;
use crate::weight::{G_IDX, SCALE, ZERO_POINT};

const QWEIGHT: &str = "qweight";
const ORDER: &str = "g_idx";

#[derive(Clone, Copy)]
struct Settings {
    library: Library,
    /// The bits of codes; where modules differ, their tensors tell them.
    bits: Option<usize>,
    /// The inputs of a group, where they are not told by `g_idx`.
    group_size: Option<i64>,
    is_mixed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Awq,
    Gptq {
        /// The number that is subtracted from zero points where they are stored; `None` where no
        /// configuration says it.
        less: Option<u8>,
        /// Whether all weights are symmetric; `None` where that is not known.
        symmetric: Option<bool>,
    },
}

pub fn find_awq(files: &Files, config: &Value) -> Result<Found> {
    let version = first(config, ["version", "checkpoint_format", "format"])?;
    let backend = first(config, ["backend"])?.filter(|backend| *backend == "llm-awq");
    let version = backend.or(version).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return Err(unsupported("version of AWQ", "gemm", "", version));
    }
    find(files, config.is_null(), Settings::new(config, Library::Awq, "bits of AWQ")?)
}

pub fn find_gptq(files: &Files, config: &Value) -> Result<Found> {
    let less = match first(config, ["checkpoint_format", "format"])? {
        None => (!config.is_null()).then_some(1),
        Some("gptq") => Some(1),
        Some("gptq_v2") => Some(0),
        Some(got) => {
            return Err(unsupported("checkpoint_format of GPTQ", "gptq or gptq_v2", "", got));
        }
    };
    let mut known = Settings::new(config, gptq(config, less)?, "bits of GPTQ")?;
    // Its `g_idx` has the group of each input.
    known.group_size = None;
    find(files, config.is_null(), known)
}

/// AutoRound's weights: `packing_format` names the layout, `backend` in older files.
pub fn find_auto_round(files: &Files, config: &Value) -> Result<Found> {
    const KNOWN: &str = "auto_round, auto_round:auto_gptq, :auto_awq or :gptqmodel";
    if config.is_null() {
        return Ok(Found::default());
    }
    let said = first(config, ["packing_format", "backend"])?.unwrap_or("auto");
    let is_own = |part: &&str| matches!(*part, "auto_round" | "autoround");
    let library = match said.split(':').find(|part| !is_own(part)) {
        Some("auto" | "gptq" | "auto_gptq") => gptq(config, Some(1))?,
        None | Some("gptqmodel") => gptq(config, Some(0))?,
        // A kernel: zero points tell the layout if they are all alike.
        Some("exllamav2" | "exllama" | "triton" | "tritonv2") => gptq(config, None)?,
        Some("awq" | "auto_awq") => Library::Awq,
        Some(_) => return Err(unsupported("packing_format of AutoRound", KNOWN, "", said)),
    };
    let mut known = Settings::new(config, library, "bits of AutoRound")?;
    known.group_size = known.group_size.or(Some(128));
    find(files, false, known)
}

/// The first of these keys that the configuration has, a text.
fn first<'a, const N: usize>(config: &'a Value, keys: [&str; N]) -> Result<Option<&'a str>> {
    match keys.map(|key| &config[key]).into_iter().find(|value| !value.is_null()) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(got) => Err(unsupported("format of a weight", "a text", "", &got.to_string())),
    }
}

/// Whether modules may have other settings: GPTQModel's `dynamic`, AutoRound's `extra_config`.
fn is_mixed(config: &Value) -> bool {
    !(config["dynamic"].is_null() && config["extra_config"].is_null())
}

fn gptq(config: &Value, less: Option<u8>) -> Result<Library> {
    let symmetric = match &config["sym"] {
        Value::Null => None,
        Value::Bool(symmetric) => Some(*symmetric),
        got => {
            return Err(unsupported("sym of GPTQ", "true or false", "", &got.to_string()));
        }
    };
    // Where modules differ in it, the zero points of each are taken by the word.
    let has_sym = |key: &&str| {
        let mut modules = config[*key].as_object().into_iter().flatten();
        modules.any(|(_, module)| !module["sym"].is_null())
    };
    let symmetric = match symmetric {
        Some(true) if ["dynamic", "extra_config"].iter().any(has_sym) => Some(false),
        Some(true) if is_mixed(config) => None,
        same => same,
    };
    Ok(Library::Gptq { less, symmetric })
}

impl Settings {
    fn new(config: &Value, library: Library, bits: &'static str) -> Result<Self> {
        let value = |keys: [&str; 2]| {
            keys.map(|key| &config[key]).into_iter().find(|value| !value.is_null())
        };
        let said = value(["bits", "w_bit"]);
        let said = match said.map(|said| (said, said.as_u64())) {
            None => None,
            Some((_, Some(4))) => Some(4),
            Some((_, Some(8))) if library != Library::Awq => Some(8),
            Some((got, _)) => {
                let expected = ["4 or 8", "4"][usize::from(library == Library::Awq)];
                return Err(unsupported(bits, expected, "", &got.to_string()));
            }
        };
        let is_mixed = is_mixed(config);
        Ok(Self {
            library,
            bits: said.filter(|_| !is_mixed),
            group_size: value(["group_size", "q_group_size"]).and_then(Value::as_i64),
            is_mixed,
        })
    }
}

/// The weights of a library, which the tensors tell if no configuration does.
fn find(files: &Files, by_tensors: bool, known: Settings) -> Result<Found> {
    let mut found = Found::default();
    for (name, _, entry) in files.tensors() {
        // AWQ's scales of an activation, which the layer before it compensates.
        if let Some(module) = module(name, "scales")
            && known.library == Library::Awq
            && !by_tensors
            && files.find(&of_module(module, QWEIGHT)).is_none()
        {
            return Err(invalid(name, "scales beside `qweight`", "scales of another module"));
        }
        let Some(module) = module(name, QWEIGHT) else { continue };
        let name = |last| of_module(module, last);
        let scales = files.find(&name("scales")).map(|(_, scales)| scales);
        // Others have tensors of that name, too.
        if entry.dtype != Dtype::I32 && scales.is_none() {
            continue;
        }
        let has_order = files.find(&name(ORDER)).is_some();
        let along_inputs = scales.is_some_and(|scales| scales.shape.last() == entry.shape.last());
        if by_tensors && (has_order || along_inputs) != (known.library != Library::Awq) {
            continue;
        }
        weight(files, module, known, &mut found)?;
    }
    Ok(found)
}

fn weight(files: &Files, module: &str, known: Settings, found: &mut Found) -> Result<()> {
    let [codes, zeros, scales, order] =
        [QWEIGHT, "qzeros", "scales", ORDER].map(|last| of_module(module, last));
    let of_scales = tensor(files, &scales)?;
    of_scales.check_float(&scales)?;
    let (groups, n) = match of_scales.shape[..] {
        [groups, n] if groups > 0 => (groups, n),
        ref got => {
            return Err(invalid(&scales, "[groups, out_features]", format!("{got:?}")));
        }
    };
    let is_gptq = known.library != Library::Awq;
    let of_zeros = tensor(files, &zeros)?;
    let is_8 = |words: &[usize]| words == [groups, n.div_ceil(4)] && n > 4;
    let bits = match known.bits {
        None if is_gptq && is_8(&of_zeros.shape) => 8,
        bits => bits.unwrap_or(4),
    };
    let packing = |axis, offset| Packing {
        transposed: true,
        interleaved: !is_gptq,
        offset,
        ..Packing::plain(axis, bits)
    };
    let each = 32 / bits;
    let of_codes = tensor(files, &codes)?;
    let rows = of_codes.shape.first().copied().unwrap_or_default();
    let (k, words) = if is_gptq {
        (rows.saturating_mul(each), [rows, n])
    } else {
        (rows, [rows, n.div_ceil(each)])
    };
    let what = format!(", codes of {bits} bits");
    of_codes.check(&codes, Dtype::I32, &words, &what)?;
    of_zeros.check(&zeros, Dtype::I32, &[groups, n.div_ceil(each)], &what)?;
    let groups_of_inputs = group_of_inputs(files, &order, [k, groups], known, found)?;
    if k == 0 || !k.is_multiple_of(groups) {
        return Err(invalid(&scales, format!("groups of equally many of {k} inputs"), groups));
    }
    check_groups(&scales, [k, groups], known)?;
    let weight = of_module(module, "weight");
    let mut add = |from, to, entry| found.packed.push((from, format!("{weight}{to}"), entry));
    if let Some(entry) = groups_of_inputs {
        add(order, G_IDX, entry);
    }
    let in_rows = |offset| of_zeros.packed([n, groups], packing(Axis::Rows, offset));
    match zero_points(files, &zeros, &in_rows(0), known.library, bits)? {
        None => found.settings.push(zeros),
        Some(offset) => add(zeros, ZERO_POINT, in_rows(offset)),
    }
    let entry =
        Entry { shape: vec![n, groups], encoding: Encoding::Transposed, ..of_scales.clone() };
    add(scales, SCALE, entry);
    let axis = if is_gptq { Axis::Columns } else { Axis::Rows };
    add(codes, "", of_codes.packed([n, k], packing(axis, 1 << (bits - 1))));
    Ok(())
}

/// The group of each input, if they are not in order; AutoRound's are, and may not be told.
fn group_of_inputs(
    files: &Files,
    name: &str,
    [k, groups]: [usize; 2],
    known: Settings,
    found: &mut Found,
) -> Result<Option<Entry>> {
    let is_absent = known.group_size.is_some() && files.find(name).is_none();
    if known.library == Library::Awq || is_absent {
        return Ok(None);
    }
    if is_in_order(files, name, groups, k)? {
        found.settings.push(name.to_owned());
        return Ok(None);
    }
    tensor(files, name).cloned().map(Some)
}

/// Checks the number of groups where no `g_idx` tells the inputs of each: the last group may have
/// fewer.
fn check_groups(scales: &str, [k, groups]: [usize; 2], known: Settings) -> Result<()> {
    let (Some(said), size) = (known.group_size, k / groups) else { return Ok(()) };
    // Groups of a power of two are never fewer, larger ones of which the last one is not whole.
    let may_differ = known.is_mixed || known.library == Library::Awq;
    let is_said = usize::try_from(said) == Ok(size) || may_differ && size.is_power_of_two();
    if groups == 1 || is_said {
        return Ok(());
    }
    Err(invalid(scales, format!("groups of {said} of {k} inputs"), format!("{groups} groups")))
}

/// The difference of stored zero points and zero points of signed codes; `None` where the latter
/// are 0.
///
/// Files of GPTQ that say `gptq` may be `gptq_v2`: symmetric ones show what they are.
fn zero_points(
    files: &Files,
    name: &str,
    entry: &Entry,
    library: Library,
    bits: usize,
) -> Result<Option<u8>> {
    let (shard, _) = files.get(name, "the zero points")?;
    let stored = shard.codes(entry, 0..entry.elements())?;
    let stored: Vec<u8> = stored.into_iter().map(i8::cast_unsigned).collect();
    let (middle, greatest) = (1u8 << (bits - 1), u8::MAX >> (8 - bits));
    let uniform = stored.first().copied().filter(|first| stored.iter().all(|zero| zero == first));
    // Symmetric codes have the middle code, or 1 less.
    let is_middle = uniform == Some(middle);
    let is_symmetric = is_middle || uniform == Some(middle - 1);
    let less = match library {
        Library::Awq => 0,
        Library::Gptq { less, symmetric } => match (less, symmetric) {
            (_, Some(true)) | (None, _) if is_symmetric => return Ok(None),
            (Some(1), None) if is_middle => return Ok(None),
            (Some(less), _) => less,
            (None, _) => {
                let expected = "checkpoint_format in config.json, as zero points differ";
                return Err(unsupported("format of GPTQ", expected, name, "none"));
            }
        },
    };
    if let Some(index) = stored.iter().position(|zero| *zero > greatest - less) {
        let got = format!("{} at index {index}", u32::from(stored[index]) + u32::from(less));
        return Err(invalid(name, format!("zero points of 0 to {greatest}"), got));
    }
    Ok((uniform != Some(middle - less)).then_some(middle - less))
}
