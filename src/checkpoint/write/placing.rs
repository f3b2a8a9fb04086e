//! The places that the quantized weights of a model take in a checkpoint: the place of a tensor,
//! rows of a tensor, or a place beside a tensor that others read.

use std::collections::{BTreeMap, HashMap};

use super::collect::Held;
use crate::checkpoint::read::{Entry, Opened, View, invalid, matrix};
use crate::error::{Error, Result};
use crate::module::LayerKind;
use crate::qconfig::IntType;
use crate::weight::origin::Part;
use crate::weight::{Format, Origin, PACKED, Quantized, SCALE, ZERO_POINT};

/// The weights by the tensors of the source.
pub struct Placed<'a> {
    source: &'a Opened,
    /// The layers that keep the checkpoint's weights.
    kept: &'a [Held<()>],
    pub weights: BTreeMap<String, Replacement>,
    /// The weights beside tensors that stay as they are.
    pub views: BTreeMap<String, Vec<SavedView>>,
    /// Computed weights, by the names that no tensor of the source has.
    pub added: BTreeMap<String, Held>,
    /// Layers whose weight has no tensor of the name that they would ask for.
    pub unnamed: Vec<String>,
}

/// The weight that stands for a tensor, or several that are its rows.
pub struct Replacement {
    pub kind: LayerKind,
    pub pieces: Vec<Quantized>,
    pub format: Format,
}

/// A weight that is a part of a tensor which stays.
pub struct SavedView {
    pub name: String,
    pub path: String,
    pub view: View,
    pub weight: Quantized,
}

pub enum Place {
    Whole(String),
    Part(String, Part),
}

impl Place {
    pub fn part(self, source: &Opened) -> Result<(String, Part)> {
        match self {
            Self::Part(name, part) => Ok((name, part)),
            Self::Whole(name) => {
                let (_, entry) = source.tensor(&name)?;
                let part = Part::rows(0, matrix(&name, entry)?);
                Ok((name, part))
            }
        }
    }
}

/// The tensor of the source that a weight replaces, or the part of it; a tensor of its name has one
/// of the shapes, the last as a float.
///
/// # Errors
/// When a name leads to a tensor of another shape or of integers, or the weight was loaded from
/// another checkpoint, which has another tensor of that name.
pub fn place<W>(held: &Held<W>, shapes: &[Vec<usize>], source: &Opened) -> Result<Option<Place>> {
    let is_named = |name: &String| source.files.find(name).is_some();
    if let Some(origin) = &held.origin
        && (is_named(&origin.name.to_string()) || held.names.iter().any(is_named))
        && origin.differs_in(source)?
    {
        return Err(Error::unsavable(
            "a layer of the checkpoint that is saved",
            format!("one of another checkpoint, whose tensor {:?} is another", origin.name),
        ));
    }
    if let Some(origin) = &held.origin
        && let Some((_, entry)) = source.files.find(&origin.name)
        && entry.shape == *origin.dims
    {
        let name = origin.name.to_string();
        check_dtype(&name, entry, source)?;
        let is_whole = origin.part == Part::rows(0, matrix(&name, entry)?);
        return Ok(Some(if is_whole {
            Place::Whole(name)
        } else {
            Place::Part(name, origin.part)
        }));
    }
    Ok(named(held, shapes, source)?.map(Place::Whole))
}

fn named<W>(held: &Held<W>, shapes: &[Vec<usize>], source: &Opened) -> Result<Option<String>> {
    let origin = held.origin.iter().map(|origin| &*origin.name);
    for name in origin.chain(held.names.iter().map(|name| &**name)) {
        let Some((_, entry)) = source.files.find(name) else { continue };
        if !shapes.contains(&entry.shape) {
            let got = format!("{:?}", entry.shape);
            let expected = format!("{:?}", shapes.last().map_or(&[][..], |shape| shape));
            return Err(invalid(name, expected, got));
        }
        check_dtype(name, entry, source)?;
        return Ok(Some(name.to_owned()));
    }
    Ok(None)
}

fn check_dtype(name: &str, entry: &Entry, source: &Opened) -> Result<()> {
    if source.weights.contains_key(name) { Ok(()) } else { entry.check_float(name) }
}

impl<'a> Placed<'a> {
    pub fn new(held: Vec<Held>, kept: &'a [Held<()>], source: &'a Opened) -> Result<Self> {
        let places = held
            .iter()
            .map(|held| place(held, &held.weight.shapes(), source).map_err(|e| e.at(&held.path)));
        let mut places = places.collect::<Result<Vec<_>>>()?;
        adopt(&held, &mut places);
        let mut held: Vec<_> = held.into_iter().zip(places).collect();
        // A table is found by its name only.
        held.sort_by_key(|(held, _)| held.kind != LayerKind::Embedding);
        let mut placed = Self {
            source,
            kept,
            weights: BTreeMap::new(),
            views: BTreeMap::new(),
            added: BTreeMap::new(),
            unnamed: Vec::new(),
        };
        let mut parts: BTreeMap<String, BTreeMap<Part, Held>> = BTreeMap::new();
        for (held, place) in held {
            match place {
                None if held.is_computed => placed.add(held)?,
                None => {
                    let got = "none: a weight that is computed or copied while a model is loaded is \
                               not found again, nor is a head that is tied to an embedding of such; \
                               load it by `nn::Linear::computed`, or exclude it";
                    return Err(missing(&held.names[0], got).at(&held.path));
                }
                Some(Place::Whole(name)) => {
                    let is_named =
                        held.names.contains(&name) || held.by_name && held.origin.is_some();
                    if held.kind == LayerKind::Linear && !is_named {
                        placed.unnamed.push(held.path.clone());
                    }
                    placed.whole(name, held)?;
                }
                Some(Place::Part(name, part)) => {
                    let known = parts.entry(name.clone()).or_default();
                    match known.get_mut(&part) {
                        None => drop(known.insert(part, held)),
                        Some(same) if equals(&same.weight, &held.weight) => {
                            if !same.weight.format().is_multiplied() {
                                *same = held;
                            }
                        }
                        Some(_) => return Err(contested(&name).at(&held.path)),
                    }
                }
            }
        }
        for (name, parts) in parts {
            placed.rows_or_views(name, parts)?;
        }
        for View { of: tensor, part } in placed.views.values().flatten().map(|saved| &saved.view) {
            // A layer that multiplies would find the view.
            let takes = |layer: &&Held<()>| {
                let is_part = |o: &Origin| *o.name == **tensor && o.part == *part;
                layer.kind != LayerKind::Embedding && layer.origin.as_ref().is_some_and(is_part)
            };
            if let Some(layer) = kept.iter().find(takes) {
                return Err(contested(tensor).at(&layer.path));
            }
        }
        Ok(placed)
    }

    /// Adds a weight under the name that it was asked for by.
    fn add(&mut self, held: Held) -> Result<()> {
        let name = held.names[0].clone();
        let is_first = self.added.get(&name).is_none_or(|known| {
            equals(&known.weight, &held.weight) && known.weight.format() == held.weight.format()
        });
        if !is_first || is_taken(&name, self.source) {
            return Err(contested(&name).at(&held.path));
        }
        self.added.insert(name, held);
        Ok(())
    }

    /// Puts a weight in the place of a tensor, or beside it if others need that.
    fn whole(&mut self, name: String, held: Held) -> Result<()> {
        let format = held.weight.format();
        let part = Part::rows(0, held.weight.shape());
        if held.origin.is_some() && self.is_kept(&name) {
            return self.view(name, part, held);
        }
        let Some(known) = self.weights.get_mut(&name) else {
            let replacement = Replacement { kind: held.kind, pieces: vec![held.weight], format };
            self.weights.insert(name, replacement);
            return Ok(());
        };
        let same = matches!(&known.pieces[..], [piece] if equals(piece, &held.weight));
        // If layers share a weight, a layer that multiplies knows the configuration of activations.
        let both = known.format.is_multiplied() && format.is_multiplied();
        let agree = !both || known.format.activations == format.activations;
        if !(same && agree && known.format.numbers == format.numbers) {
            let is_found = !known.format.is_multiplied() || !held.by_name;
            return if held.origin.is_some() && is_found && format.is_multiplied() {
                self.view(name, part, held)
            } else {
                Err(contested(&name).at(&held.path))
            };
        }
        if !known.format.is_multiplied() {
            (known.kind, known.format) = (held.kind, format);
        }
        Ok(())
    }

    /// Puts parts of a tensor in its place if together they are its rows, quantized alike; else
    /// beside it.
    fn rows_or_views(&mut self, name: String, parts: BTreeMap<Part, Held>) -> Result<()> {
        let is_needed = self.weights.contains_key(&name) || self.is_kept(&name);
        let mut rows: Vec<_> = parts.iter().collect();
        rows.sort_by_key(|(part, _)| part.offset);
        match alike(&name, &rows, self.source).filter(|_| !is_needed) {
            Some((kind, format)) => {
                let pieces = rows.iter().map(|(_, held)| held.weight.clone()).collect();
                self.weights.insert(name, Replacement { kind, pieces, format });
                Ok(())
            }
            None => {
                (parts.into_iter()).try_for_each(|(part, held)| self.view(name.clone(), part, held))
            }
        }
    }

    fn is_kept(&self, name: &str) -> bool {
        self.kept.iter().any(|layer| layer.is_of(name))
    }

    fn view(&mut self, tensor: String, part: Part, held: Held) -> Result<()> {
        let views = self.views.entry(tensor.clone()).or_default();
        let known = views.iter().find(|saved| saved.view.part == part);
        let differs = |saved: &SavedView| {
            !equals(&saved.weight, &held.weight) || saved.weight.format() != held.weight.format()
        };
        // A table is found by its name only.
        if held.kind == LayerKind::Embedding || known.is_some_and(differs) {
            return Err(contested(&tensor).at(&held.path));
        }
        if known.is_some() {
            return Ok(());
        }
        let name = self.source.views.get(&tensor).and_then(|views| views.get(&part)).cloned();
        views.push(SavedView {
            name: name.unwrap_or_else(|| view_name(&tensor, part, self.source)),
            path: held.path,
            view: View { of: tensor, part },
            weight: held.weight,
        });
        Ok(())
    }
}

/// Gives a weight without a place the place of an equal weight: a head that holds its embedding's
/// weight.
fn adopt(held: &[Held], places: &mut [Option<Place>]) {
    let mut known = HashMap::new();
    for (held, place) in held.iter().zip(&*places) {
        if let Some(Place::Whole(name)) = place {
            known.insert(held.weight.memory(), name.clone());
        }
    }
    // A weight that is packed with another bias is in other memory.
    let equal = |unplaced: &Held| {
        held.iter().find_map(|other| {
            let name = known.get(&other.weight.memory())?;
            equals(&unplaced.weight, &other.weight).then(|| name.clone())
        })
    };
    for (held, place) in held.iter().zip(places) {
        if place.is_none() {
            let name = known.get(&held.weight.memory()).cloned();
            *place = name.or_else(|| equal(held)).map(Place::Whole);
        }
    }
}

/// The kind and the format of rows, in order, that are all of a tensor and quantized alike.
fn alike(name: &str, rows: &[(&Part, &Held)], source: &Opened) -> Option<(LayerKind, Format)> {
    let (_, entry) = source.files.find(name)?;
    let [n, k] = matrix(name, entry).ok()?;
    let mut next = 0;
    for (part, _) in rows {
        next = part.whole_rows(k).filter(|range| range.start == next)?.end;
    }
    let (_, first) = rows.first().filter(|_| next == n)?;
    let mut format = first.weight.format();
    let per_row = format.codes().is_none_or(|codes| codes.qscheme.is_per_channel());
    for (_, held) in &rows[1..] {
        format = format.joined(held.weight.format())?;
    }
    // Rows of a quantized tensor do not know which of its elements were clamped.
    if let Some(stored) = source.weights.get(name).and_then(|kind| kind.format()) {
        format = stored.joined(format)?;
    }
    // Packed weights are matrices.
    let is_packed = format.groups().is_some_and(|groups| groups.dtype == IntType::Int4);
    (per_row && (!is_packed || entry.shape.len() == 2)).then(|| (first.kind.clone(), format))
}

/// A name that is not in the source.
fn view_name(tensor: &str, part: Part, source: &Opened) -> String {
    let Part { shape: [n, k], offset, strides: [down, across] } = part;
    let whole = source.files.find(tensor).map(|(_, entry)| matrix(tensor, entry));
    let mut name =
        if whole.is_some_and(|shape| shape.is_ok_and(|shape| part == Part::rows(0, shape))) {
            format!("{tensor}.quantized")
        } else {
            format!("{tensor}.quantized_{offset}_{n}x{k}_{down}x{across}")
        };
    while is_taken(&name, source) {
        name.push('_');
    }
    name
}

/// Whether a quantized weight of that name would have a tensor that the source has.
fn is_taken(name: &str, source: &Opened) -> bool {
    let mut suffixes = ["", PACKED, SCALE, ZERO_POINT].iter();
    suffixes.any(|suffix| source.files.find(&format!("{name}{suffix}")).is_some())
}

impl<W> Held<W> {
    fn is_of(&self, name: &str) -> bool {
        match &self.origin {
            Some(origin) => *origin.name == *name,
            None => self.names.iter().any(|known| known == name),
        }
    }
}

/// Whether the codes or halves of two weights are the same.
fn equals(a: &Quantized, b: &Quantized) -> bool {
    let parts = |w: &Quantized| (w.codes(), w.grouped(), w.halves(), w.scales());
    a.memory() == b.memory()
        || (a.shape() == b.shape()
            && a.format().numbers == b.format().numbers
            && parts(a) == parts(b)
            && a.zero_points() == b.zero_points())
}

/// The error of a layer whose tensor is not in the source.
pub fn missing(name: &str, got: &str) -> Error {
    Error::unsavable(format!("a tensor {name:?} in the checkpoint"), got)
}

/// The error of layers that need different tensors under one name.
pub fn contested(name: &str) -> Error {
    Error::unsavable(
        format!("one weight for the tensor {name:?}"),
        "two layers with different ones",
    )
}
