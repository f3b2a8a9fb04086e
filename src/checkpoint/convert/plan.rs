//! Which tensors of a float checkpoint are weights of which layers, and what they become.
//!
//! A checkpoint has no layers, so they are told by names and shapes, and a spec's rules apply to
//! them as to a model's layers.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{SourceWeight, check_products};
use crate::checkpoint::read::{Checkpoint, matrix};
use crate::checkpoint::write::{join, last_name};
use crate::error::{Error, Result};
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, Quantizable, Walk, WalkMut, WeightDType, WeightInfo};
use crate::nn::Geometry;
use crate::qconfig::QConfig;
use crate::quantize::{LeftReason, Outcome, QConfigSpec, quantize_dynamic};
use crate::words::unknown_name;

/// Ends of a module's name that make it a table: see [`quantize`](super::quantize).
const TABLES: [&str; 6] = ["wte", "wpe", "shared", "relative_attention_bias", "pos", "emb"];
/// Names of a module that is a router if its siblings are experts.
const GATES: [&str; 2] = ["gate", "shared_expert_gate"];
/// Kinds of matrices that no rule for Linears is for, and why.
const OTHERS: [(&str, &str); 8] = [
    (ADAPTER, "an adapter is quantized with the layer that it is merged into"),
    (CONV1D, "a Conv1D has its weight as [in, out]"),
    (ROUTER, "a router decides by small differences"),
    (
        EXPERT,
        "transformers 5 reads experts as one tensor, float; a rule by name or regex quantizes them",
    ),
    (NORM, "a norm is not multiplied by rows"),
    (POSITIONS, "transformers looks positions up in a layer that is no Embedding"),
    (CODEBOOK, "the rows of a codebook are compared"),
    (
        TIED_TABLE,
        "transformers reads no codes in a table that a head is tied to; named as an embedding, it is quantized \
         for this crate",
    ),
];
const ADAPTER: &str = "Adapter";
const CONV1D: &str = "Conv1D";
const ROUTER: &str = "Router";
const EXPERT: &str = "Expert";
const NORM: &str = "Norm";
const POSITIONS: &str = "Positions";
const CODEBOOK: &str = "Codebook";
/// The tensors of the experts' two products, the gate's and the first one's in one.
const EXPERTS: [&str; 2] = ["gate_up_proj", "down_proj"];
const TIED_TABLE: &str = "TiedTable";

/// The layers that the tensors of a checkpoint are taken for, each with its quantization.
#[derive(Clone, Debug)]
pub struct Plan {
    layers: Vec<PlannedLayer>,
}

/// A layer that some tensors of a checkpoint are taken for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedLayer {
    /// The name of its tensors without their last part; rules match it.
    pub name: String,
    /// The kind, by names and shapes.
    pub kind: LayerKind,
    /// The tensors that hold its weights.
    pub tensors: Vec<String>,
    /// How it is quantized, or why it stays float.
    pub qconfig: Result<QConfig, LeftReason>,
    shapes: Vec<Vec<usize>>,
}

impl Plan {
    /// Applies a spec to the layers that the float matrices of a checkpoint are taken for, by the
    /// rules of [`quantize`](super::quantize); `linears` and `embeddings` are names of tensors, with
    /// or without `.weight`, that are what they are said to be, whatever they are called.
    ///
    /// A tensor of another name and of two dimensions or more is named in full: `in_proj_weight`,
    /// or experts `[experts, out, in]`. Its rows, of all experts, get a scale each, and models that
    /// cut their weights from it get quantized layers. Experts whose rows are inputs, as in gpt-oss
    /// and Llama 4, are an error.
    ///
    /// # Errors
    /// As [`quantize`](super::quantize); when one of the names belongs to no layer.
    pub fn new(
        source: &Checkpoint,
        spec: &QConfigSpec,
        linears: &[String],
        embeddings: &[String],
    ) -> Result<Self> {
        let linears = linears.iter().map(|name| (LayerKind::Linear, name));
        let named = linears.chain(embeddings.iter().map(|name| (LayerKind::Embedding, name)));
        let named: Vec<_> = named.map(|(kind, name)| (kind, name.clone())).collect();
        Self::of_kinds(source, spec, &named)
    }

    /// [`new`](Self::new) with the kinds of tensors by their names.
    ///
    /// The name of a convolution stands for all below it, too, `""` for all; the longest counts.
    /// `weight` of four dimensions is a Conv2d's, of three a Conv1d's or a ConvTranspose1d's. Files
    /// know no groups: a layer with groups refuses to load codes.
    ///
    /// # Errors
    /// As [`new`](Self::new); when a kind is another one.
    pub fn of_kinds(
        source: &Checkpoint,
        spec: &QConfigSpec,
        named: &[(LayerKind, String)],
    ) -> Result<Self> {
        let mut found = find(source);
        tell_named(source, &mut found, named)?;
        if let Some(name) = source.opened.weights.keys().next() {
            let got = format!("the quantized weight {name:?}");
            return Err(Error::argument("checkpoint", "one that is float", got));
        }
        if found.is_empty() {
            let expected = "one with a matrix called `name.weight`, or a convolution that is named";
            return Err(Error::argument("checkpoint", expected, "one without"));
        }
        let leaf = |layer| Leaf { layer, source: source.clone() };
        let mut tree = Tree(found.into_iter().map(leaf).collect());
        let report = quantize_dynamic(&mut tree, spec).map_err(|error| {
            if error.path().is_some() { error.in_file(source.opened.files.path()) } else { error }
        })?;
        let layers = tree.0.into_iter().zip(report.layers).map(|(leaf, report)| PlannedLayer {
            qconfig: match report.outcome {
                Outcome::Left { reason: LeftReason::NoRule } => Err(leaf.layer.why_none()),
                Outcome::Left { reason } => Err(reason),
                Outcome::Swapped { .. } | Outcome::Shared { .. } => leaf.layer.qconfig,
            },
            ..leaf.layer
        });
        Ok(Self { layers: layers.collect() })
    }

    /// The layers by name.
    pub fn layers(&self) -> &[PlannedLayer] {
        &self.layers
    }
}

impl PlannedLayer {
    fn new(name: &str, kind: LayerKind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            tensors: Vec::new(),
            qconfig: Err(LeftReason::NoRule),
            shapes: Vec::new(),
        }
    }

    /// Whether other libraries have no module for it: one tensor of several layers, which models
    /// cut their weights from, or a quantized convolution.
    pub fn is_foreign(&self) -> bool {
        self.tensors == [&*self.name] || Geometry::of_kind(&self.kind).is_some()
    }

    /// Whether it is a matrix `weight`, and no recurrent layer.
    pub(super) fn is_matrix(&self) -> bool {
        matches!(self.kind, LayerKind::Linear | LayerKind::Embedding | LayerKind::Custom(_))
    }

    pub(super) fn is_linear(&self) -> bool {
        self.kind == LayerKind::Linear || self.kind == LayerKind::custom(EXPERT)
    }

    fn why_none(&self) -> LeftReason {
        let mut others = OTHERS.iter();
        match others.find(|(kind, _)| self.kind == LayerKind::custom(kind)) {
            Some((_, why)) => LeftReason::Kind { why },
            None => LeftReason::NoRule,
        }
    }
}

/// A float tensor by its full name as a layer of that name: the matrices of experts, or of query,
/// key and value, one after the other.
fn tensor(source: &Checkpoint, name: &str, kind: &LayerKind) -> Option<PlannedLayer> {
    let (_, entry) = source.opened.files.find(name)?;
    let shape = matrix(name, entry).ok().filter(|_| entry.is_float())?;
    Some(PlannedLayer {
        tensors: vec![name.to_owned()],
        shapes: vec![shape.to_vec()],
        ..PlannedLayer::new(name, kind.clone())
    })
}

/// Gives the matrices of these names their kinds, and adds the tensors of several layers and the
/// convolutions.
fn tell_named(
    source: &Checkpoint,
    found: &mut Vec<PlannedLayer>,
    named: &[(LayerKind, String)],
) -> Result<()> {
    // The longest name that fits a convolution is the last one.
    let mut named: Vec<_> = named.iter().collect();
    named.sort_by_key(|(_, name)| name.len());
    for (kind, name) in named {
        if let Some((_, rank)) = Geometry::of_kind(kind) {
            tell_convolutions(source, found, (kind, name), rank)?;
            continue;
        }
        if ![LayerKind::Linear, LayerKind::Embedding].contains(kind) {
            let expected = "Linear, Embedding or a convolution";
            return Err(Error::argument("kind", expected, kind).at(name));
        }
        let fits = |layer: &&mut PlannedLayer| {
            (layer.name == *name || layer.tensors == [&**name]) && layer.is_matrix()
        };
        if let Some(layer) = found.iter_mut().find(fits) {
            layer.kind = kind.clone();
            continue;
        }
        let layer = tensor(source, name, kind).ok_or_else(|| {
            let names: Vec<_> = found.iter().map(|layer| &*layer.name).collect();
            unknown_name("matrix", name, &names)
        })?;
        if has_inputs_as_rows(source, name) {
            return Err(Error::argument(
                "linear",
                "experts [experts, out_features, in_features], with a scale for each output",
                format!("{name:?}, whose rows are inputs; it stays float"),
            ));
        }
        found.push(layer);
    }
    Ok(())
}

/// Adds the weights of `rank` dimensions at or below a name as convolutions of that kind.
fn tell_convolutions(
    source: &Checkpoint,
    found: &mut Vec<PlannedLayer>,
    (kind, name): (&LayerKind, &str),
    rank: usize,
) -> Result<()> {
    let (mut others, mut fits) = (Vec::new(), false);
    for (tensor, _, entry) in source.opened.files.tensors() {
        let (module, last) = tensor.rsplit_once('.').unwrap_or(("", tensor));
        if last != "weight" || entry.shape.len() != rank || !entry.is_float() {
            continue;
        }
        let rest = tensor.strip_prefix(name);
        if !rest.is_some_and(|rest| rest.is_empty() || name.is_empty() || rest.starts_with('.')) {
            others.push(module);
            continue;
        }
        fits = true;
        match found.iter_mut().find(|layer| layer.tensors == [tensor]) {
            Some(layer) => layer.kind = kind.clone(),
            None => found.push(PlannedLayer {
                tensors: vec![tensor.to_owned()],
                shapes: vec![entry.shape.clone()],
                ..PlannedLayer::new(module, kind.clone())
            }),
        }
    }
    if fits {
        return Ok(());
    }
    let weight = ["weight of three dimensions", "weight of four dimensions"][usize::from(rank > 3)];
    Err(unknown_name(weight, name, &others))
}

/// Whether experts are stored as `[experts, in, out]`, as in gpt-oss and Llama 4: by the sizes of
/// their two products, where the first has two outputs for each input of the second.
fn has_inputs_as_rows(source: &Checkpoint, name: &str) -> bool {
    let (module, last) = name.rsplit_once('.').unwrap_or(("", name));
    let shape = |last: &str| {
        let (_, entry) = source.opened.files.find(&format!("{module}.{last}"))?;
        <[usize; 3]>::try_from(&entry.shape[..]).ok()
    };
    let [first, second] = EXPERTS.map(shape);
    let Some(([_, rows, columns], [_, of_rows, of_columns])) = first.zip(second) else {
        return false;
    };
    EXPERTS.contains(&last) && columns == 2 * of_rows && rows == of_columns
}

fn find(source: &Checkpoint) -> Vec<PlannedLayer> {
    let mut found: BTreeMap<String, PlannedLayer> = BTreeMap::new();
    let files = &source.opened.files;
    for (name, _, entry) in files.tensors() {
        let &[rows, columns] = &entry.shape[..] else { continue };
        let (module, last) = name.rsplit_once('.').unwrap_or(("", name));
        let shape = |last: &str| {
            let (_, entry) = files.find(&join(module, last))?;
            <[usize; 2]>::try_from(&entry.shape[..]).ok()
        };
        let Some(kind) = kind(module, last, shape).filter(|_| entry.is_float()) else { continue };
        let layer = found.entry(module.to_owned());
        let layer = layer.or_insert_with(|| PlannedLayer::new(module, kind));
        layer.tensors.push(name.to_owned());
        layer.shapes.push(vec![rows, columns]);
    }
    let mut found: Vec<_> = found.into_values().collect();
    tell_linears(source, &mut found);
    tell_tied_tables(source, &mut found);
    found
}

/// Corrects the kinds of matrices by biases and siblings, where names alone do not tell them.
fn tell_linears(source: &Checkpoint, layers: &mut [PlannedLayer]) {
    let files = &source.opened.files;
    let bias = |layer: &PlannedLayer| {
        let (_, entry) = files.find(&format!("{}.bias", layer.name))?;
        <[usize; 1]>::try_from(&entry.shape[..]).ok()
    };
    let mut transposed = BTreeSet::new();
    for layer in layers.iter_mut().filter(|layer| layer.is_matrix()) {
        let &[rows, columns] = &layer.shapes[0][..] else { continue };
        match bias(layer) {
            Some([of_bias]) if of_bias == columns && of_bias != rows => {
                transposed.insert(last_name(&layer.name).to_owned());
            }
            // A table has none.
            Some([of_bias]) if of_bias == rows => layer.kind = LayerKind::Linear,
            _ => {}
        }
    }
    let with_experts: BTreeSet<&str> =
        files.tensors().filter_map(|(name, _, _)| Some(name.split_once(".experts.")?.0)).collect();
    for layer in layers.iter_mut().filter(|layer| layer.is_matrix()) {
        let last = last_name(&layer.name);
        let parent = layer.name.rsplit_once('.').map_or("", |(parent, _)| parent);
        let below = |folder: &str| layer.name.split('.').any(|part| part == folder);
        let is_gate = GATES.contains(&last) && with_experts.contains(parent);
        let kinds = [
            (ADAPTER, layer.name.split('.').any(|part| part.starts_with("lora_"))),
            (CONV1D, transposed.contains(last)),
            (ROUTER, below("router") || is_gate),
            (EXPERT, below("experts")),
            (NORM, last.contains("norm")),
            (POSITIONS, last == "embed_positions"),
            (CODEBOOK, last.contains("codebook")),
        ];
        if let Some((kind, _)) = kinds.into_iter().find(|(_, is)| *is) {
            layer.kind = LayerKind::custom(kind);
        }
    }
}

/// Tells the tables that transformers ties to a head or to each other: the largest, where no Linear
/// has their shape, of a model with a head of words, or with a table called `shared`.
fn tell_tied_tables(source: &Checkpoint, layers: &mut [PlannedLayer]) {
    let is_table = |layer: &PlannedLayer| layer.kind == LayerKind::Embedding;
    let of_words = |layer: &&PlannedLayer| !last_name(&layer.name).contains("position");
    let tables = layers.iter().filter(|layer| is_table(layer)).filter(of_words);
    let Some(largest) = tables.map(|layer| layer.shapes[0].clone()).max() else { return };
    // A Linear of that shape in a block is not a head.
    let in_block = |name: &str| name.split('.').any(|part| part.parse::<u32>().is_ok());
    let has_own_head = layers
        .iter()
        .any(|layer| layer.shapes[0] == largest && !is_table(layer) && !in_block(&layer.name));
    let is_shared = |layer: &PlannedLayer| is_table(layer) && last_name(&layer.name) == "shared";
    let is_tied = source.opened.config.has_tied_head || layers.iter().any(is_shared);
    if is_tied && !has_own_head {
        let tables = layers.iter_mut().filter(|layer| is_table(layer));
        tables
            .filter(|layer| layer.shapes[0] == largest)
            .for_each(|layer| layer.kind = LayerKind::custom(TIED_TABLE));
    }
}

/// The kind of layer that a matrix is taken for; `shape` returns the shape of another tensor of its
/// module.
fn kind(module: &str, last: &str, shape: impl Fn(&str) -> Option<[usize; 2]>) -> Option<LayerKind> {
    if last == "weight" {
        let name = last_name(module);
        let is_table = name.contains("embed") && name != "embed_out"
            || name.ends_with("_emb")
            || TABLES.contains(&name);
        return Some(if is_table { LayerKind::Embedding } else { LayerKind::Linear });
    }
    let suffix = ["weight_ih", "weight_hh", "weight_hr"].into_iter();
    let suffix = suffix.filter_map(|start| last.strip_prefix(start)).next()?;
    let is_layer = suffix.strip_prefix("_l").is_some_and(|layer| {
        let layer = layer.strip_suffix("_reverse").unwrap_or(layer);
        !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit())
    });
    if !(is_layer || suffix.is_empty()) {
        return None;
    }
    let [rows, state] = shape(&format!("weight_hh{suffix}"))?;
    // If a state is projected, only the projection knows the hidden size.
    let hidden = shape(&format!("weight_hr{suffix}")).map_or(state, |[_, hidden]| hidden);
    let gates = rows.checked_div(hidden).filter(|gates| gates * hidden == rows)?;
    Some(match (gates, is_layer) {
        (4, true) => LayerKind::LSTM,
        (3, true) => LayerKind::GRU,
        (1, true) => LayerKind::RNN,
        (4, false) => LayerKind::LSTMCell,
        (3, false) => LayerKind::GRUCell,
        (1, false) => LayerKind::RNNCell,
        _ => return None,
    })
}

/// The layers as a model whose quantization is to be remembered.
struct Tree(Vec<Leaf>);

struct Leaf {
    layer: PlannedLayer,
    source: Checkpoint,
}

#[diagnostic::do_not_recommend]
impl Layer for Leaf {
    fn kind(&self) -> LayerKind {
        self.layer.kind.clone()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        let dtype = match self.layer.qconfig {
            Err(_) => WeightDType::F32,
            Ok(_) => WeightDType::QInt8,
        };
        let geometry = Geometry::of_kind(&self.layer.kind);
        let info = |shape: &Vec<usize>| WeightInfo {
            convolution: geometry.as_ref().and_then(|(geometry, _)| geometry.cost(shape)),
            ..WeightInfo::new("weight", shape, dtype, 0)
        };
        self.layer.shapes.iter().map(info).collect()
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        if let LayerKind::Custom(kind) = &self.layer.kind
            && !self.layer.is_linear()
        {
            return Err(Error::qconfig(format!("float weights, which a {kind} keeps"), qconfig));
        }
        if Geometry::of_kind(&self.layer.kind).is_some() {
            Geometry::check(qconfig)?;
        }
        // A table is looked up, not multiplied.
        if self.layer.kind != LayerKind::Embedding {
            for tensor in &self.layer.tensors {
                let weight = SourceWeight::new(&self.source.opened, tensor, &self.layer.kind);
                let checked = check_products(weight, qconfig);
                let name = tensor.rsplit('.').next().unwrap_or(tensor);
                checked.map_err(|error| error.at(name))?;
            }
        }
        Ok(Self {
            layer: PlannedLayer { qconfig: Ok(qconfig.clone()), ..self.layer.clone() },
            source: self.source.clone(),
        })
    }
}

layers! { Leaf }

impl Quantizable for Tree {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        let mut leaves = self.0.iter();
        leaves.try_for_each(|leaf| match &*leaf.layer.name {
            "" => walk.layer(leaf),
            name => walk.child(name, leaf),
        })
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        let mut leaves = self.0.iter_mut();
        leaves.try_for_each(|leaf| match &*leaf.layer.name.clone() {
            "" => walk.layer(leaf),
            name => walk.child(name, leaf),
        })
    }
}
