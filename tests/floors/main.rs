//! Imports go down only. Each module of the library, and of the kernels, uses itself and the
//! modules in lower layers. Among the files of a crate, imports form no cycle, where `mod.rs` is a
//! file like any other. So a file may import a definition from its `mod.rs`, or `mod.rs` may
//! re-export a name from the file, but not both.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use imports::imports;

/// The modules in layers from the bottom up; modules of a layer do not use each other.
const LAYERS: &[&[&str]] = &[
    &["error"],
    &["trace", "tap", "words", "sizes"],
    &["document", "name_regex"],
    &["qparams"],
    &["kernels"],
    &["halves", "tensor"],
    &["deviation", "observer", "ops"],
    &["qconfig"],
    &["weight"],
    &["module"],
    &["nn"],
    &["quantize"],
    &["inspect"],
    &["equalize", "gptq"],
    &["checkpoint", "tune"],
    &["guide"],
    &["lib"],
];

/// The modules of the kernels crate, from the bottom up.
const KERNELS: &[&[&str]] = &[
    &["error", "sizes"],
    &["qparams"],
    &["isa", "reference", "threads"],
    &["packed"],
    &["loops"],
    &["arch"],
    &["calls"],
    &["lib"],
];

fn layer(layers: &[&[&str]], module: &str) -> Option<usize> {
    layers.iter().position(|modules| modules.contains(&module))
}

/// Sources of a crate by their paths below `src`.
type Sources = BTreeMap<PathBuf, String>;

fn sources(package: &str) -> Sources {
    fn add(src: &Path, folder: &Path, found: &mut Sources) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                add(src, &path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let below = path.strip_prefix(src).expect("below src").to_owned();
                found.insert(below, fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src");
    let mut found = Sources::new();
    add(&src, &src, &mut found);
    assert!(!found.is_empty());
    found
}

fn kernels() -> Sources {
    sources("crates/kernels")
}

/// The upward imports of the kernels, except in tests, which call the code above them.
fn climbs_of_kernels(mut sources: Sources) -> Vec<String> {
    sources.retain(|file, _| !is_test(file));
    climbs(&sources, KERNELS)
}

/// The module that a file is: `["loops", "tile"]` of `loops/tile.rs`.
fn module(file: &Path) -> Vec<&str> {
    let names = file.with_extension("");
    let count = match names.file_name().and_then(|name| name.to_str()) {
        Some("mod" | "lib" | "main") => names.components().count() - 1,
        _ => names.components().count(),
    };
    let names = file.components().take(count);
    let names = names.map(|name| name.as_os_str().to_str().expect("UTF-8"));
    names.map(|name| name.trim_end_matches(".rs")).collect()
}

/// The imports of each file: of this crate, without `crate`, and of others.
fn all_imports(sources: &Sources) -> BTreeMap<&Path, Vec<Vec<String>>> {
    let modules: Vec<_> = sources.keys().map(|file| module(file)).collect();
    let imports_of = |file: &Path, source: &str| {
        let module = module(file);
        let children = modules.iter().filter(|m| m.len() == module.len() + 1);
        let children = children.filter(|m| m.starts_with(&module));
        let children: Vec<_> = children.filter_map(|m| m.last().copied()).collect();
        imports(source, &module, &children)
    };
    let all = sources.iter().map(|(file, source)| (&**file, imports_of(file, source)));
    all.collect()
}

fn is_test(file: &Path) -> bool {
    module(file).contains(&"tests")
}

/// Every import that goes up between modules of a crate.
fn climbs(sources: &Sources, layers: &[&[&str]]) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, imports) in all_imports(sources) {
        let names_of_file = module(file);
        let at = |what: &str| format!("{}: {what}", file.display());
        let top = names_of_file.first().copied().unwrap_or("lib");
        let Some(level) = layer(layers, top) else {
            faults.push(at("a module that is in no layer"));
            continue;
        };
        for import in imports.iter().filter(|import| import[0] == "crate") {
            let names: Vec<_> = import[1..].iter().map(String::as_str).collect();
            // A name that is not a module is an item of `lib.rs`.
            let to = names.first().copied().unwrap_or("lib");
            if to != top && layer(layers, to).is_none_or(|to| to >= level) {
                faults.push(at(&format!("{top} uses crate::{}", names.join("::"))));
            }
        }
    }
    faults
}

/// A cycle of files, each importing the next.
fn circle(sources: &Sources) -> Option<Vec<PathBuf>> {
    let files: BTreeMap<Vec<&str>, &Path> =
        (sources.keys()).map(|file| (module(file), &**file)).collect();
    let mut uses: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    let all = all_imports(sources).into_iter();
    for (file, imports) in all.filter(|(file, _)| !is_test(file)) {
        for import in imports.iter().filter(|import| import[0] == "crate") {
            let names: Vec<_> = import[1..].iter().map(String::as_str).collect();
            let of_prefix = |end: usize| files.get(&names[..end]);
            let to = (0..=names.len()).rev().find_map(of_prefix);
            if let Some(to) = to.filter(|to| **to != file && !is_test(to)) {
                uses.entry(file).or_default().insert(to);
            }
        }
    }
    // Files that import no remaining file are removed; the rest leads to a cycle.
    let mut left: BTreeSet<&Path> = uses.keys().copied().collect();
    let next_of = |left: &BTreeSet<&Path>, file: &Path| {
        let mut to = uses[file].iter().copied();
        to.find(|to| left.contains(to))
    };
    loop {
        let open = |file: &&Path| next_of(&left, file).is_some();
        let next: BTreeSet<_> = left.iter().copied().filter(open).collect();
        if next.len() == left.len() {
            break;
        }
        left = next;
    }
    let (mut way, mut file) = (Vec::new(), *left.first()?);
    while !way.contains(&file) {
        way.push(file);
        file = next_of(&left, file)?;
    }
    let circle = way.into_iter().skip_while(|passed| *passed != file);
    Some(circle.map(Path::to_owned).collect())
}

#[test]
fn imports_go_down_only() {
    let mut faults = climbs(&sources(""), LAYERS);
    faults.extend(climbs_of_kernels(kernels()));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn files_have_no_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    faults.extend(circle(&sources("")));
    for group in ["crates", "apps"] {
        for entry in fs::read_dir(root.join(group)).expect("a folder") {
            let package = entry.expect("an entry").path();
            if package.join("src").is_dir() {
                let package = package.to_str().expect("UTF-8");
                faults.extend(circle(&sources(package)));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_environment_is_read_in_two_places() {
    let allowed = ["isa/mod.rs", "threads/pool.rs"].map(Path::new);
    let kernels = kernels().into_iter();
    let others = kernels.filter(|(file, _)| !allowed.contains(&&**file));
    for (file, source) in others.chain(sources("")) {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(!code.contains("env::var"), "{}", file.display());
    }
}

/// The kernels with an additional file.
fn with(file: &str, source: &str) -> Sources {
    let mut sources = kernels();
    sources.insert(file.into(), source.to_owned());
    sources
}

#[test]
fn a_climb_is_found_however_it_is_written() {
    let climbing = [
        ("loops/new.rs", "use crate::calls::linear::linear;", 1),
        ("loops/new.rs", "use super::super::{isa, arch::{op::Op as O, Isa}};", 2),
        ("loops/new.rs", "fn f() { super::super::arch::op::run() }", 1),
        ("loops/new.rs", "mod inner { use super::super::super::arch; }", 1),
        ("loops/new.rs", "mod inner { fn f() {} } use super::super::arch;", 1),
        ("loops/new.rs", "use crate::{sizes, qparams::QParams, Packed};", 1),
        ("arch/x86_64/new.rs", "use crate::calls;", 1),
        ("arch/new.rs", "use crate::threads;", 0),
        ("threads/new.rs", "use super::super::packed::Packed;", 1),
        ("loops/new.rs", "// use crate::calls;\nfn f(x: &'a str) { \"crate::calls\" }", 0),
        ("loops/new.rs", "fn f() { r#\"\"crate::calls\"#; '\\''; b'\"'; crate::calls::f() }", 1),
        ("qparams/new.rs", "use crate::Isa;", 1),
        ("new.rs", "", 1),
    ];
    for (file, source, expected) in climbing {
        let faults = climbs_of_kernels(with(file, source));
        assert_eq!(faults.len(), expected, "{file}: {source}: {faults:?}");
    }
}

#[test]
fn a_circle_is_found() {
    let (one, two) = ("loops/one.rs", "loops/two.rs");
    let mut sources = with(one, "use super::two::f;");
    sources.insert(two.into(), "fn f() {}".to_owned());
    assert_eq!(circle(&sources), None);
    sources.insert(two.into(), "use crate::loops::one::g;".to_owned());
    assert_eq!(circle(&sources), Some(vec![one.into(), two.into()]));
}

#[test]
fn a_mod_rs_is_a_file_of_a_circle() {
    let circles = |parent: &str, file: &str| {
        let files = [("lib.rs", ""), ("a/mod.rs", parent), ("a/b.rs", file)];
        let files = files.map(|(file, source)| (file.into(), source.to_owned()));
        circle(&files.into())
    };
    let both = Some(vec!["a/b.rs".into(), "a/mod.rs".into()]);
    assert_eq!(circles("mod b; pub use b::f; struct S;", "use super::S;"), both);
    assert_eq!(circles("mod b; fn g() { b::f() }", "use crate::a;"), both);
    assert_eq!(circles("mod b; struct S;", "use super::S;"), None);
    assert_eq!(circles("mod b; pub use b::f;", "fn f() {}"), None);
}
