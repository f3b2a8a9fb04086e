//! The passes over a file, repeated until nothing changes.

use std::path::Path;

use super::draft::{Draft, Todo};
use super::others::types_of;
use super::source::{Fault, Source};
use super::unit::Unit;
use super::unused::Unused;
use super::world::World;
use super::{
    attention, closures, constructors, defaults, derives, folds, heads, imports, kernels, layers,
    marks, names, needs, norms, projections, routers, sums, tied, unused, weights, wrappers,
};

/// A ported file.
#[derive(Debug)]
pub struct Ported {
    pub text: String,
    pub todos: Vec<Todo>,
}

/// The most rounds until nothing changes.
const MAX_ROUNDS: usize = 8;

/// Ports the text of a file. `path` locates the modules that the text names.
pub fn port(path: &Path, text: &str, world: &World) -> Result<Ported, Fault> {
    let mut ported = Ported { text: text.to_owned(), todos: Vec::new() };
    if world.is_left_out(path) {
        return Ok(ported);
    }
    for round in 0..MAX_ROUNDS {
        let (changed, todos) = pass(path, &ported.text, world, (round > 0).then_some(text))
            .map_err(|fault| match round {
                0 => fault,
                _ => Fault::whole(format!(
                    "the rewritten file does not parse (line {}: {})",
                    fault.line, fault.message
                )),
            })?;
        if round == 0 {
            ported.todos.clone_from(&todos);
        }
        match changed {
            Some(changed) if changed != ported.text => ported.text = changed,
            _ => {
                // A later round may have settled the place.
                let left = |todo: &Todo| todos.iter().any(|last| last.what == todo.what);
                ported.todos.retain(left);
                return Ok(ported);
            }
        }
    }
    Err(Fault::whole(format!("not settled after {MAX_ROUNDS} rounds")))
}

/// Runs one round: the changed text, if anything changes, and the places left.
fn pass(
    path: &Path,
    text: &str,
    world: &World,
    original: Option<&str>,
) -> Result<(Option<String>, Vec<Todo>), Fault> {
    let (source, file) = Source::parse(text)?;
    let types = types_of(path, world, &source, &file);
    types.check(&source)?;
    let unit = Unit::new(path, world, &source, &file, &types);
    let mut draft = Draft::default();
    let names = names::find(&unit);
    attention::rewrite(&unit, &mut draft, &names.modules);
    norms::rewrite(&unit, &mut draft, &names.modules);
    heads::rewrite(&unit, &mut draft, &names.modules);
    tied::rewrite(&unit, &mut draft);
    wrappers::rewrite(&unit, &mut draft);
    let held = layers::rewrite(&unit, &mut draft, &names.modules);
    weights::list(&unit, &mut draft, &held);
    constructors::rewrite(&unit, &mut draft);
    kernels::rewrite(&unit, &mut draft);
    closures::list(&unit, &mut draft);
    folds::list(&unit, &mut draft);
    needs::list(&unit, &mut draft);
    projections::rewrite(&unit, &mut draft);
    routers::rewrite(&unit, &mut draft);
    sums::rewrite(&unit, &mut draft);
    defaults::rewrite(&unit, &mut draft);
    let modules = names::rewrite(&unit, &mut draft, names);
    derives::rewrite(&unit, &mut draft);
    let unused = original.map(|original| Unused::new(original, text));
    if let Some(unused) = &unused {
        unused::rewrite(&unit, &mut draft, unused);
    }
    imports::rewrite(&unit, &mut draft, &modules, unused.as_ref());
    // Constructors and calls change together, so no other pass may rewrite parts of them.
    if draft.edits.is_empty() {
        folds::rewrite(&unit, &mut draft);
    }
    // A closure is left as it is while other passes rewrite parts of it.
    if draft.edits.is_empty() {
        closures::rewrite(&unit, &mut draft);
    }
    // Only now is it known which types hold layers.
    if let Some(original) = original.filter(|_| draft.edits.is_empty()) {
        marks::rewrite(&unit, &mut draft, original);
    }
    let mut todos = draft.todos;
    let lines = unit.left_out.iter().map(|range| source.line(range.start)..=source.line(range.end));
    let lines: Vec<_> = lines.collect();
    todos.retain(|todo| !lines.iter().any(|lines| lines.contains(&todo.line)));
    todos.sort();
    todos.dedup();
    if draft.edits.is_empty() {
        return Ok((None, todos));
    }
    let overlap = || Fault::whole("two changes of one place".into());
    Ok((Some(draft.edits.apply(text).ok_or_else(overlap)?), todos))
}
