//! `dynquant port`: a candle model's source, rewritten to use candle-dynquant.
//!
//! Everything is found on the syntax tree and changed in the text, by byte ranges, so that
//! formatting and comments stay. The result is ported again until nothing changes: a second run
//! has nothing to do.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attention;
mod chain;
mod defaults;
mod derives;
mod draft;
mod edits;
mod facts;
mod features;
mod files;
mod format;
mod found;
mod functions;
mod fused;
mod globs;
mod head;
mod heads;
mod imports;
mod layers;
mod literals;
mod masks;
mod names;
mod needs;
mod others;
mod paths;
mod product;
mod projections;
mod rank;
mod releases;
mod render;
mod scale;
mod scopes;
mod show;
mod source;
mod sums;
mod syntax;
mod table;
mod tied;
mod types;
mod unit;
mod untied;
mod unused;
mod uses;
mod weights;
mod world;
mod wrappers;

use std::path::Path;

use draft::{Draft, Todo};
use needs::lines as manifest_lines;
use others::types_of;
use releases::{NEEDED as CANDLE, other as other_candle};
pub use show::{Args, run};
use source::Fault;
use source::Source;
use unit::Unit;
use unused::Unused;
use world::World;

/// The stack that [`run`] needs: the recursion over a syntax tree is as deep as an expression; see
/// `source::MAX_DEPTH`.
pub const STACK: usize = 1 << 30;

/// A file that is ported.
#[derive(Debug)]
struct Ported {
    pub text: String,
    pub todos: Vec<Todo>,
}

/// Rounds until nothing changes; two are enough for any file seen.
const MAX_ROUNDS: usize = 6;

/// Ports the text of a file. `path` says where the modules are that it names.
fn port(path: &Path, text: &str, world: &World) -> Result<Ported, Fault> {
    let mut ported = Ported {
        text: text.to_owned(),
        todos: Vec::new(),
    };
    if world.is_left_out(path) {
        return Ok(ported);
    }
    for round in 0..MAX_ROUNDS {
        let (changed, todos) = pass(path, &ported.text, world, (round > 0).then_some(text))
            .map_err(|fault| match round {
                0 => fault,
                _ => Fault {
                    line: 1,
                    message: format!(
                        "the result is no Rust (line {}: {})",
                        fault.line, fault.message
                    ),
                },
            })?;
        if round == 0 {
            ported.todos.clone_from(&todos);
        }
        match changed {
            Some(changed) if changed != ported.text => ported.text = changed,
            _ => {
                // A later round may have settled it.
                let left = |todo: &Todo| todos.iter().any(|last| last.what == todo.what);
                ported.todos.retain(left);
                return Ok(ported);
            }
        }
    }
    Err(Fault {
        line: 1,
        message: format!("not settled after {MAX_ROUNDS} rounds"),
    })
}

/// One round: the changed text, if anything changes, and what is left.
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
    attention::rewrite(&unit, &mut draft, &names.house);
    heads::rewrite(&unit, &mut draft, &names.house);
    tied::rewrite(&unit, &mut draft);
    wrappers::rewrite(&unit, &mut draft);
    let held = layers::rewrite(&unit, &mut draft, &names.house);
    weights::list(&unit, &mut draft, &held);
    needs::list(&unit, &mut draft);
    projections::rewrite(&unit, &mut draft);
    sums::rewrite(&unit, &mut draft);
    defaults::rewrite(&unit, &mut draft);
    let house = names::rewrite(&unit, &mut draft, names);
    derives::rewrite(&unit, &mut draft);
    let unused = original.map(|original| Unused::of(original, text));
    if let Some(unused) = &unused {
        unused::rewrite(&unit, &mut draft, unused);
    }
    imports::rewrite(&unit, &mut draft, &house, unused.as_ref());
    // Only then is it known which types hold layers.
    if let Some(original) = original.filter(|_| draft.edits.is_empty()) {
        derives::mark(&unit, &mut draft, original);
    }
    let mut todos = draft.todos;
    let lines = unit
        .left_out
        .iter()
        .map(|range| source.line(range.start)..=source.line(range.end));
    let lines: Vec<_> = lines.collect();
    todos.retain(|todo| !lines.iter().any(|lines| lines.contains(&todo.line)));
    todos.sort();
    todos.dedup();
    if draft.edits.is_empty() {
        return Ok((None, todos));
    }
    let overlap = || Fault {
        line: 1,
        message: "two changes of one place".into(),
    };
    Ok((Some(draft.edits.apply(text).ok_or_else(overlap)?), todos))
}
