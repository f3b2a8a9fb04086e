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
mod edits;
mod facts;
mod features;
mod files;
mod format;
mod functions;
mod fused;
mod globs;
mod heads;
mod imports;
mod layers;
mod literals;
mod masks;
mod names;
mod needs;
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
mod types;
mod untied;
mod unused;
mod uses;
mod weights;
mod world;
mod wrappers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use syn::visit::{self, Visit};

use edits::Edits;
use needs::lines as manifest_lines;
use releases::{NEEDED as CANDLE, other as other_candle};
use scopes::Module;
pub use show::{Args, run};
use source::Fault;
use source::Source;
use table::Home;
use types::Types;
use unused::Unused;
use world::World;

/// The stack that [`run`] needs: the recursion over a syntax tree is as deep as an expression; see
/// `source::MAX_DEPTH`.
pub const STACK: usize = 1 << 30;

/// A place that is left to a person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Todo {
    /// Of the file as it was read.
    pub line: usize,
    pub what: String,
    pub advice: String,
    /// The trait whose objects may hide layers, which is said once for all of them.
    #[serde(rename = "trait", skip_serializing_if = "Option::is_none")]
    pub of_trait: Option<String>,
}

/// A file that is ported.
#[derive(Debug)]
struct Ported {
    pub text: String,
    pub todos: Vec<Todo>,
}

/// A file as the passes see it.
struct Unit<'u> {
    source: &'u Source<'u>,
    file: &'u syn::File,
    types: &'u Types,
    path: &'u Path,
    world: &'u World,
    /// Where parameters of type `&Tensor` are, by name: the bytes of their functions.
    borrowed: Vec<(String, std::ops::Range<usize>)>,
    /// Code that no CPU runs.
    left_out: Vec<std::ops::Range<usize>>,
}

impl<'u> Unit<'u> {
    fn new(
        path: &'u Path,
        world: &'u World,
        source: &'u Source<'u>,
        file: &'u syn::File,
        types: &'u Types,
    ) -> Self {
        Self {
            borrowed: borrowed(source, file),
            left_out: features::left_out(source, file),
            source,
            file,
            types,
            path,
            world,
        }
    }

    fn todo(&self, at: usize, what: String, advice: String) -> Todo {
        Todo {
            line: self.source.line(at),
            what,
            advice,
            of_trait: None,
        }
    }

    /// Whether the file may have to do with candle: it names it, or has names of other modules.
    fn is_of_candle(&self) -> bool {
        let has_globs = || !self.types.scopes.crate_globs().is_empty();
        self.source.text.contains("candle") || has_globs()
    }

    /// Whether no CPU runs the code at a byte.
    fn is_left_out(&self, at: usize) -> bool {
        self.left_out.iter().any(|range| range.contains(&at))
    }

    /// Whether a name is a parameter `&Tensor` here.
    fn is_borrowed(&self, ident: &syn::Ident) -> bool {
        let at = self.source.range(ident).start;
        self.borrowed
            .iter()
            .any(|(name, body)| ident == name && body.contains(&at))
    }
}

/// The changes that the passes ask for.
#[derive(Default)]
struct Draft {
    edits: Edits,
    todos: Vec<Todo>,
    needs: BTreeMap<Module, BTreeSet<Vec<String>>>,
    /// Names under which a need is imported, where they differ.
    aliases: BTreeMap<Vec<String>, String>,
}

impl Draft {
    /// Wants a module of candle-dynquant imported under a name.
    fn need(&mut self, module: &[String], name: &str, home: Home) {
        let path = match home {
            Home::Nn => "nn",
            Home::Ops => "ops",
        };
        self.need_path(module, &[path]);
        if name != path {
            self.aliases.insert(vec![path.to_owned()], name.to_owned());
        }
    }

    /// Wants a name of `nn` imported.
    fn need_name(&mut self, module: &[String], name: &str) {
        self.need_path(module, &["nn", name]);
    }

    fn need_path(&mut self, module: &[String], path: &[&str]) {
        let path = path.iter().map(|segment| (*segment).to_owned()).collect();
        self.needs.entry(module.to_vec()).or_default().insert(path);
    }
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

/// The types of a file, whose names may come from other files.
fn scoped(path: &Path, world: &World, file: &syn::File) -> Types {
    let mut types = Types::within(file, world.has_own_tracing(path));
    globs::expand(world, path, &mut types);
    types
}

/// The types of a file, with those that multiply by tensors of theirs.
fn types_of(path: &Path, world: &World, source: &Source<'_>, file: &syn::File) -> Types {
    let mut types = scoped(path, world, file);
    types.multiplied = weights::multiplied(&Unit::new(path, world, source, file, &types));
    types
}

/// The text with layers in the place of the tensors that multiply as theirs do: what other files see
/// of its types.
fn with_layers(path: &Path, text: String, world: &World) -> String {
    let changed = || {
        let (source, file) = Source::parse(&text).ok()?;
        let types = scoped(path, world, &file);
        let unit = Unit::new(path, world, &source, &file, &types);
        let mut draft = Draft::default();
        let names = names::find(&unit);
        layers::rewrite(&unit, &mut draft, &names.house);
        imports::rewrite(&unit, &mut draft, &names.house, None);
        draft.edits.apply(&text)
    };
    changed().unwrap_or(text)
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

/// Parameters of type `&Tensor` that their function does not bind anew.
fn borrowed(source: &Source<'_>, file: &syn::File) -> Vec<(String, std::ops::Range<usize>)> {
    struct Find<'s> {
        source: &'s Source<'s>,
        found: Vec<(String, std::ops::Range<usize>)>,
    }
    struct Bound(BTreeSet<String>);
    impl<'a> Visit<'a> for Bound {
        fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
            self.0.insert(pat.ident.to_string());
        }
    }
    impl Find<'_> {
        fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
            let mut bound = Bound(BTreeSet::new());
            bound.visit_block(block);
            for input in &signature.inputs {
                let syn::FnArg::Typed(input) = input else {
                    continue;
                };
                let (syn::Pat::Ident(pat), syn::Type::Reference(ty)) = (&*input.pat, &*input.ty)
                else {
                    continue;
                };
                let syn::Type::Path(ty) = &*ty.elem else {
                    continue;
                };
                let tensor = ty
                    .path
                    .segments
                    .last()
                    .is_some_and(|last| last.ident == "Tensor");
                let name = pat.ident.to_string();
                if tensor && !bound.0.contains(&name) {
                    self.found.push((name, self.source.range(block)));
                }
            }
        }
    }
    impl<'a> Visit<'a> for Find<'_> {
        fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
            self.function(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
        fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
    let mut find = Find {
        source,
        found: Vec::new(),
    };
    find.visit_file(file);
    find.found
}
