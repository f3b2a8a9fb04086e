//! Rewrites `use` declarations: names of candle with a namesake here are imported from here.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, ItemUse, UseTree, Visibility};

use super::draft::Draft;
use super::names::Modules;
use super::render;
use super::scopes::{Leaf, Module, Origin, leaves};
use super::unit::Unit;
use super::unused::Unused;
use super::walk::{Node, places};

/// Rewrites imports, adds the imports that other passes need, and removes unused imports.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, modules: &Modules, unused: Option<&Unused>) {
    let uses = places(unit.file).filter_map(|place| match place.node {
        Node::Item(Item::Use(item)) => {
            Some(Use { item, module: place.module.to_vec(), in_function: place.in_function })
        }
        _ => None,
    });
    let uses: Vec<_> = uses.collect();
    let mut wanted: BTreeMap<Module, Vec<Leaf>> = BTreeMap::new();
    let mut gone = BTreeSet::new();
    let mut removed = Vec::new();
    for (index, usage) in uses.iter().enumerate() {
        let (stay, moved) = split(unit, usage, modules, unused);
        if stay.len() == leaves(usage.item).len() {
            continue;
        }
        let here = wanted.entry(usage.module.clone()).or_default();
        if has_comments(unit.source.slice(usage.item))
            && in_place(unit, draft, usage, &stay, &moved)
        {
            here.extend(moved.into_iter().filter(|_| !stay.is_empty()));
            continue;
        }
        gone.insert(index);
        let left = if usage.is_plain() {
            here.extend(moved);
            stay
        } else {
            [stay, moved].concat()
        };
        if left.is_empty() {
            removed.push(unit.source.range(usage.item));
        } else {
            replace(unit, draft, usage, &left);
        }
    }
    needed(unit, draft, &mut wanted);
    let mut filled = Vec::new();
    for (module, leaves) in wanted {
        if !leaves.is_empty() {
            filled.extend(add(unit, draft, &uses, &gone, &module, leaves));
        }
    }
    for range in removed {
        // The empty lines around a replaced declaration stay.
        let lines = if filled.contains(&range.start) {
            unit.source.whole_lines(range)
        } else {
            unit.source.lines_of(range)
        };
        draft.edits.replace(lines, "");
    }
}

/// Adds the needed names that no import brings.
fn needed(unit: &Unit<'_>, draft: &mut Draft, wanted: &mut BTreeMap<Module, Vec<Leaf>>) {
    for (module, paths) in std::mem::take(&mut draft.needs) {
        let scope = unit.types.scopes.modules.get(&module);
        for path in paths {
            let origin = Origin::Ours(path.clone());
            let here = scope.is_some_and(|scope| scope.bindings.values().any(|o| *o == origin));
            let full = [&["candle_dynquant".to_owned()], path.as_slice()].concat();
            let module_wanted = wanted.entry(module.clone()).or_default();
            if here || module_wanted.iter().any(|leaf| leaf.path == full) {
                continue;
            }
            let name = draft.aliases.get(&path).or(path.last()).cloned().unwrap_or_default();
            module_wanted.push(Leaf { path: full, name });
        }
    }
}

fn ours(leaf: &Leaf, path: &[&str]) -> Leaf {
    let path = std::iter::once(&"candle_dynquant").chain(path);
    Leaf { path: path.map(|segment| (*segment).to_owned()).collect(), name: leaf.name.clone() }
}

/// The leaf of candle-dynquant that replaces a leaf, if it has a namesake.
fn namesake(unit: &Unit<'_>, usage: &Use<'_>, modules: &Modules, leaf: &Leaf) -> Option<Leaf> {
    let origin = unit.types.scopes.resolve(&usage.module, &leaf.path);
    let (Origin::Nn(path) | Origin::Traced(path)) = &origin else { return None };
    if leaf.name == "*" || unit.source.is_kept(unit.source.start(usage.item)) {
        return None;
    }
    if matches!(origin, Origin::Nn(_)) && modules.moved.contains(&leaf.name) {
        return match path.as_slice() {
            [] => Some(ours(leaf, &["nn"])),
            [ops] if ops == "ops" => Some(ours(leaf, &["ops"])),
            _ => None,
        };
    }
    let mapped = origin.mapped().filter(|mapped| mapped.segments == path.len())?;
    Some(ours(leaf, &[mapped.home.name(), mapped.name]))
}

/// The imports that stay, and the imports that move to this crate.
fn split(
    unit: &Unit<'_>,
    usage: &Use<'_>,
    modules: &Modules,
    unused: Option<&Unused>,
) -> (Vec<Leaf>, Vec<Leaf>) {
    let all = leaves(usage.item);
    let used = |leaf: &Leaf| {
        let public = !matches!(usage.item.vis, Visibility::Inherited);
        public || !unused.is_some_and(|unused| unused.is_import(&leaf.name))
    };
    let (mut stay, mut replaced) = (Vec::new(), Vec::new());
    for leaf in all.into_iter().filter(used) {
        match namesake(unit, usage, modules, &leaf) {
            Some(moved) => replaced.push(moved),
            None => stay.push(leaf),
        }
    }
    (stay, replaced)
}

fn has_comments(text: &str) -> bool {
    text.contains("//") || text.contains("/*")
}

/// Adds leaves to a module's imports from here; `place` says where, if they replace another
/// declaration.
fn add(
    unit: &Unit<'_>,
    draft: &mut Draft,
    uses: &[Use<'_>],
    gone: &BTreeSet<usize>,
    module: &[String],
    mut leaves_wanted: Vec<Leaf>,
) -> Option<usize> {
    let source = unit.source;
    let in_module = |usage: &&Use<'_>| usage.module == module && !usage.in_function;
    let is_ours = |usage: &Use<'_>| {
        let mut all = leaves(usage.item).into_iter();
        usage.is_plain() && all.all(|leaf| leaf.path.starts_with(&["candle_dynquant".to_owned()]))
    };
    let stays = |(index, usage): &(usize, &Use<'_>)| {
        in_module(usage) && is_ours(usage) && !gone.contains(index)
    };
    let ours: Vec<_> = uses.iter().enumerate().filter(stays).map(|(_, usage)| usage).collect();
    leaves_wanted.extend(ours.iter().flat_map(|usage| leaves(usage.item)));
    leaves_wanted.sort_by_key(render::sort_key);
    leaves_wanted.dedup_by(|a, b| a.path == b.path && a.name == b.name);
    let here: Vec<_> = uses.iter().filter(in_module).collect();
    let (at, after) = match ours.first() {
        Some(usage) => (source.start(usage.item), false),
        None => place(unit, module, &here)?,
    };
    let (indent, newline) = (source.indent(at), source.newline);
    // The groups `nn::{..}`, `ops::{..}` and the rest, each on a line.
    let group = |module: &str| {
        let all = leaves_wanted.iter();
        let is_in_group = |leaf: &&Leaf| match leaf.path.as_slice() {
            [_, inner, _, ..] if ["nn", "ops"].contains(&inner.as_str()) => inner == module,
            _ => module.is_empty(),
        };
        all.filter(is_in_group).cloned().collect::<Vec<_>>()
    };
    let groups = ["nn", "ops", ""].map(group).into_iter().filter(|group| !group.is_empty());
    let texts: Vec<_> = groups.map(|group| render::uses(&group, "", indent, newline)).collect();
    let text = texts.join(&format!("{newline}{indent}"));
    for usage in &ours {
        let range = source.whole_lines(source.range(usage.item));
        draft.edits.replace(range, "");
    }
    let start = source.line_start(at);
    if after {
        draft.edits.insert(at, format!("{newline}{indent}{text}"));
    } else if !source.text[start..at].trim().is_empty() {
        draft.edits.insert(at, format!("{text} "));
    } else {
        // The line before a declaration, which may be removed.
        let gap = if here.is_empty() { newline } else { "" };
        let text = format!("{indent}{text}{newline}{gap}");
        draft.edits.insert(start, text);
    }
    Some(at)
}

/// A `use` and its place.
struct Use<'a> {
    item: &'a ItemUse,
    module: Module,
    in_function: bool,
}

impl Use<'_> {
    /// Whether it can be merged with others: no attributes, no visibility, not in a function.
    fn is_plain(&self) -> bool {
        let inherited = matches!(self.item.vis, Visibility::Inherited);
        inherited && self.item.attrs.is_empty() && !self.in_function
    }
}

/// Edits a `use` with comments in place, if it is one list of candle_nn's names: its root if all
/// names move, else the names that move.
fn in_place(
    unit: &Unit<'_>,
    draft: &mut Draft,
    usage: &Use<'_>,
    stay: &[Leaf],
    moved: &[Leaf],
) -> bool {
    let UseTree::Path(root) = &usage.item.tree else { return false };
    let UseTree::Group(group) = &*root.tree else { return false };
    let mut items = group.items.iter();
    let flat = items.all(|tree| matches!(tree, UseTree::Name(_)));
    let in_nn = |leaf: &Leaf| leaf.path.get(1).is_some_and(|module| module == "nn");
    if !flat || !moved.iter().all(in_nn) || root.ident != "candle_nn" {
        return false;
    }
    let source = unit.source;
    if stay.is_empty() {
        let range = source.range(&root.ident);
        draft.edits.replace(range, "candle_dynquant::nn");
        return true;
    }
    for pair in group.items.pairs() {
        let (name, comma) = (*pair.value(), pair.punct());
        if moved.iter().any(|leaf| source.slice(name) == leaf.name) {
            let (name, comma) = (source.range(name), comma.map(|comma| source.range(*comma)));
            let range = name.start..comma.map_or(name.end, |comma| comma.end);
            draft.edits.replace(source.with_comments(range), "");
        }
    }
    true
}

/// Replaces a `use` by a `use` of these leaves.
fn replace(unit: &Unit<'_>, draft: &mut Draft, usage: &Use<'_>, leaves: &[Leaf]) {
    let source = unit.source;
    let whole = source.range(usage.item);
    let tail = source.start(&usage.item.use_token)..whole.end;
    let head = match usage.item.vis {
        Visibility::Inherited => String::new(),
        ref vis => format!("{} ", source.slice(vis)),
    };
    let mut text = render::uses(leaves, &head, source.indent(whole.start), source.newline);
    if usage.item.leading_colon.is_some() {
        text = text.replace("use ", "use ::");
    }
    draft.edits.replace(tail, text[head.len()..].to_owned());
}

/// The place for a module's imports from here: before those from candle_nn, else after those from
/// candle, else first. Returns whether it is the end of the existing imports.
fn place(unit: &Unit<'_>, module: &[String], here: &[&Use<'_>]) -> Option<(usize, bool)> {
    let range = |usage: &Use<'_>| unit.source.range(usage.item);
    let candle_nn = here.iter().find(|usage| {
        let first = leaves(usage.item).into_iter().next();
        let origin = first.map(|leaf| unit.types.scopes.resolve(module, &leaf.path));
        matches!(origin, Some(Origin::Nn(_)))
    });
    if let Some(usage) = candle_nn {
        return Some((range(usage).start, false));
    }
    let core = here.iter().rev().find(|usage| {
        let leaves = leaves(usage.item).into_iter();
        let mut roots = leaves.filter_map(|leaf| leaf.path.into_iter().next());
        roots.all(|root| root == "candle" || root == "candle_core")
    });
    match (core, here.first()) {
        (Some(usage), _) => Some((range(usage).end, true)),
        (None, Some(usage)) => Some((range(usage).start, false)),
        (None, None) => Some((first_item(unit, module)?, false)),
    }
}

fn first_item(unit: &Unit<'_>, module: &[String]) -> Option<usize> {
    let mut items = &unit.file.items;
    for name in module {
        let inner = items.iter().find_map(|item| match item {
            syn::Item::Mod(item) if item.ident == name => item.content.as_ref(),
            _ => None,
        });
        items = &inner?.1;
    }
    items.first().map(|item| unit.source.start(item))
}
