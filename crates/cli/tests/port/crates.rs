//! Files that refer to other files of their crate, of a workspace or of another crate.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::common::{SMALL, dynquant, file, folder, has, read, said, stderr};
use super::{json, status};

const MANIFEST: (&str, &str) = ("Cargo.toml", "[package]\nname = \"a\"\n");

/// A folder with these files and texts.
fn files<const N: usize>(all: [(&str, &str); N]) -> TempDir {
    let folder = folder();
    for (name, text) in all {
        file(&folder, name, text);
    }
    folder
}

/// The places left to the user.
pub fn left(report: &Value) -> Vec<&str> {
    let files = report["files"].as_array().unwrap().iter();
    let todos = files.flat_map(|one| one["todo"].as_array().unwrap());
    todos.map(|todo| todo["what"].as_str().unwrap()).collect()
}

#[test]
fn types_of_other_files_are_found() {
    let model = "use self::text::Text;\nuse super::vision as eyes;\n\npub struct Both {\n    text: Text,\n    \
                 vision: eyes::Vision,\n}\n";
    let folder = files([
        ("models/clip/text.rs", "pub struct Text {\n    a: candle_nn::Linear,\n}\n"),
        ("models/vision.rs", "pub use crate::models::far::Vision;\n"),
        ("models/far.rs", "pub struct Vision(candle_nn::Embedding);\n"),
    ]);
    let model = file(&folder, "models/clip/mod.rs", model);
    let alone = json(&[], &model);
    assert_eq!(left(&alone).len(), 2, "{alone}");
    assert_eq!(alone["files"][0]["lines_added"], 2, "{alone}");
    said(&["port", "--write"], &[&folder.path().join("models")]);
    assert_eq!(status(&["--check"], &model), Some(0));
}

/// A model in one file that calls functions of other files, and traits whose types are elsewhere.
#[test]
fn what_a_file_lacks_is_named() {
    let folder = files([
        ("src/main.rs", "mod llama;\n"),
        ("Cargo.toml", "[dependencies]\ncandle-nn = \"0.11\"\n"),
    ]);
    let text = "use candle::{Result, Tensor};\nuse super::with_tracing::QMatMul;\n\n\
                pub struct A {\n    a: candle_nn::Linear,\n    b: QMatMul,\n}\n\n\
                fn f(xs: Tensor) -> Result<Tensor> {\n    crate::utils::repeat_kv(xs, 2)\n}\n";
    let model = file(&folder, "src/llama.rs", text);
    let report = json(&[], &model);
    let absent = ["`super::with_tracing`", "`crate::utils`"];
    let absent = absent.map(|path| format!("{path} is not in this crate"));
    assert_eq!(left(&report), absent);
    let lines = report["needs"][0]["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 2, "{report}");
    assert!(lines[0].as_str().unwrap().starts_with("candle = "));
    // The missing files and the dependencies are added.
    file(&folder, "src/utils.rs", "pub fn repeat_kv() {}\n");
    file(&folder, "src/with_tracing.rs", "pub struct QMatMul;\n");
    let manifest =
        "[dependencies]\ncandle-nn = \"0.11\"\ncandle.workspace = true\ncandle-dynquant = {}\n";
    file(&folder, "Cargo.toml", manifest);
    let report = json(&[], &model);
    assert_eq!(left(&report).len(), 0, "{report}");
    assert_eq!(report["needs"].as_array().unwrap().len(), 0, "{report}");
}

/// A layer that the project defines is recognized in other files too, unless it is for GPUs.
#[test]
fn layers_of_other_files_are_seen() {
    let folder = folder();
    let layers = "use candle::{Result, Tensor};\n\npub struct Linear {\n    weight: Tensor,\n}\n\n\
                  impl Linear {\n    pub fn new(weight: Tensor) -> Self {\n        Self { weight }\n    }\n\n\
                  pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        \
                  xs.matmul(&self.weight.t()?)\n    }\n}\n";
    let modules = "mod layers;\nmod model;\n#[cfg(feature = \"cuda\")]\nmod flash;\n";
    file(&folder, "src/lib.rs", modules);
    file(&folder, "src/layers.rs", layers);
    let model = "use crate::layers::Linear;\n\npub struct Model {\n    layers: Vec<Linear>,\n}\n";
    let model = file(&folder, "src/model.rs", model);
    let flash = "use candle_nn::Linear;\n\npub struct Flash {\n    layers: Vec<Linear>,\n}\n";
    let flash = file(&folder, "src/flash.rs", flash);
    let before = read(&flash);
    let report = json(&["--write"], folder.path());
    assert!(left(&report).is_empty(), "{report}");
    has(&read(&model), "#[derive(Clone, Quantizable)]");
    assert_eq!(read(&flash), before);
    // A function that multiplies by its argument is recognized in other files too.
    file(&folder, "src/ops/mod.rs", "mod linear;\npub use linear::f_linear;\n");
    let function = "pub fn f_linear(xs: &Tensor, w: &Tensor) -> R { xs.matmul(w) }\n";
    file(&folder, "src/ops/linear.rs", function);
    let net = "use crate::ops::f_linear;\nuse candle_nn::VarBuilder;\n\npub struct Net(Tensor);\n\n\
               impl Net {\n    fn load(vb: VarBuilder) -> R { Ok(Self(vb.get((4, 4), \"w\")?)) }\n    \
               fn forward(&self, xs: &Tensor) -> R { f_linear(xs, &self.0) }\n}\n";
    let report = json(&[], &file(&folder, "src/net.rs", net));
    assert_eq!(left(&report), ["`0` of `Net` multiplies as a tensor, and is no layer"]);
    // A weight that a type of another file holds.
    let net = "use crate::ops::Net;\n\npub struct Outer {\n    net: Net,\n}\n\nimpl Outer {\n    \
               fn forward(&self, xs: &Tensor) -> R { xs.matmul(self.net.weight())?.matmul(&self.net.a) }\n}\n";
    let ops = "pub struct Net { w: Tensor, pub a: Tensor }\n\nimpl Net {\n    \
               pub fn weight(&self) -> &Tensor { &self.w }\n}\n";
    file(&folder, "src/ops/mod.rs", ops);
    let report = json(&[], &file(&folder, "src/net.rs", net));
    let expected = ["self.net.a", "self.net.weight(..)"]
        .map(|read| format!("`{read}` is read and multiplies as a tensor, and is no layer"));
    assert_eq!(left(&report), expected);
    // A trait whose types are in another file, and a trait of another crate.
    let objects = "use crate::model::Head;\n\npub struct A {\n    layer: candle_nn::Linear,\n    \
                   head: Box<dyn Head>,\n    other: std::sync::Arc<dyn far::Layer>,\n}\n";
    let objects = file(&folder, "src/objects.rs", objects);
    let head = "pub trait Head {}\n\nstruct B(candle_nn::Linear);\n\nimpl Head for B {}\n";
    file(&folder, "src/model.rs", head);
    let report = json(&[], folder.path());
    let files = report["files"].as_array().unwrap().iter();
    let mut todos = files.filter(|one| one["file"] == objects.display().to_string().as_str());
    let todos = todos.next().unwrap()["todo"].as_array().unwrap();
    assert_eq!(todos.len(), 2, "{report}");
    assert_eq!(todos[1]["what"], "`dyn Layer` may hide layers");
}

/// A crate's `with_tracing` is not candle-transformers' if its functions differ.
#[test]
fn a_tracing_module_of_the_crates_own_stays() {
    let folder = files([MANIFEST, ("src/lib.rs", "mod model;\nmod with_tracing;\n")]);
    let model = "use crate::with_tracing::{linear, TracedLinear};\nuse candle_nn::VarBuilder;\n\n\
                 pub struct A {\n    a: TracedLinear,\n}\n\nimpl A {\n    \
                 pub fn load(vb: VarBuilder) -> candle::Result<Self> {\n        \
                 Ok(Self { a: linear(4, 4, vb, 2)? })\n    }\n}\n";
    let model = file(&folder, "src/model.rs", model);
    let module = "pub struct TracedLinear {\n    inner: candle_nn::Linear,\n}\n\n\
               pub fn linear(i: usize, o: usize, vb: candle_nn::VarBuilder, rank: usize) \
               -> candle::Result<TracedLinear> {\n    let _ = rank;\n    \
               Ok(TracedLinear { inner: candle_nn::linear(i, o, vb)? })\n}\n";
    file(&folder, "src/with_tracing.rs", module);
    said(&["port", "--write"], &[&folder.path().join("src")]);
    let ported = read(&model);
    has(&ported, "use crate::with_tracing::{linear, TracedLinear};");
    has(&ported, "#[derive(Clone, Quantizable)]\npub struct A");
}

/// A crate may re-export `candle_nn`.
#[test]
fn layers_of_a_candle_that_is_passed_on_are_ported() {
    let folder = folder();
    for path in ["mylib::candle_nn", "candle_dynquant::candle_nn"] {
        let text =
            format!("use {path}::{{Linear, Module}};\n\npub struct A {{\n    a: Linear,\n}}\n");
        let model = file(&folder, "a.rs", &text);
        said(&["port", "--write"], &[&model]);
        let ported = read(&model);
        has(&ported, "use candle_dynquant::nn::Linear;");
        has(&ported, &format!("use {path}::Module;"));
        has(&ported, "#[derive(Clone, Quantizable)]");
    }
}

/// Another release of candle is reported once for each Cargo.toml, with the release needed.
#[test]
fn another_candle_is_named() {
    let folder = folder();
    let model = file(&folder, "a/src/model.rs", SMALL);
    let canonical = folder.path().canonicalize().unwrap();
    let found = |manifest: &str, root: &str| {
        file(&folder, "a/Cargo.toml", &format!("{}{manifest}", MANIFEST.1));
        file(&folder, "Cargo.toml", &format!("[workspace]\n{root}"));
        let report = json(&[], &model);
        let candle = report["candle"].as_array().unwrap().iter();
        let shown = candle.map(|one| {
            assert_eq!(one["needed"], "0.11.1");
            let manifest = Path::new(one["manifest"].as_str().unwrap());
            let manifest = manifest.strip_prefix(&canonical).unwrap().display();
            format!("{manifest}: {}", one["found"].as_str().unwrap())
        });
        shown.collect::<Vec<_>>()
    };
    for fits in ["0.11", "^0.11.0", "0", "*", ">=0.9", "=0.11.2", "0.11.3"] {
        let manifest = format!("[dependencies]\ncandle-core = \"{fits}\"\n");
        assert!(found(&manifest, "").is_empty(), "{fits}");
    }
    let cases = [
        ("candle-core = '0.8'\ncandle-nn = '0.8'", "core and candle-nn are 0.8"),
        ("candle = { package = 'candle-core', version = '=0.11.0' }", "core is =0.11.0"),
        ("candle-nn = { git = 'https://x/c', rev = '12' }", "nn is 12 of https://x/c"),
        ("candle-nn = { git = 'https://x/c' }", "nn is of https://x/c"),
        (
            "candle-core = { git = 'https://x/c', version = '0.8.4' }",
            "core is 0.8.4 of https://x/c",
        ),
        ("candle-core = { path = '../candle' }", "core is 0.9.2 of the folder ../candle"),
    ];
    let other = "[package]\nname = \"candle-core\"\nversion = \"0.9.2\"\n";
    file(&folder, "candle/Cargo.toml", other);
    for (lines, expected) in cases {
        let manifest = format!("[dependencies]\n{lines}\n");
        assert_eq!(found(&manifest, ""), [format!("a/Cargo.toml: candle-{expected}")]);
    }
    let inherited = "[target.'cfg(unix)'.dependencies]\ncandle.workspace = true\n";
    let root = "[workspace.dependencies.candle]\npackage = \"candle-core\"\nversion = \"0.10\"\n";
    assert_eq!(found(inherited, root), ["Cargo.toml: candle-core is 0.10"]);
    // The lock file states the exact release.
    let package =
        "[[package]]\nname = \"candle-core\"\nversion = \"0.10.2\"\nsource = \"registry+x\"\n";
    file(&folder, "Cargo.lock", package);
    let locked = "candle-core is 0.10.2";
    assert_eq!(found(inherited, root), [format!("Cargo.toml: {locked}")]);
    // The report is one line, and an unreadable Cargo.toml does not prevent it.
    let said = stderr(&dynquant(&["port", "--check"], &[&model]));
    let lines: Vec<_> = said.lines().filter(|line| line.contains(locked)).collect();
    assert_eq!(lines.len(), 1, "{said}");
    has(lines[0], "needs 0.11.1 or a later 0.11");
    assert!(lines[0].ends_with("own-project.md#releases-of-candle"), "{said}");
    assert!(found("[dependencies]\ncandle-core = 3\nx =", "").is_empty());
}

/// The release that the command asks for is the release that the library is built with.
#[test]
fn the_needed_candle_is_the_librarys() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let Ok(manifest) = fs::read_to_string(manifest) else {
        return eprintln!("skipped: not in the repository");
    };
    assert!(manifest.contains("candle-core = { version = \"0.11.1\""));
}

/// A trait of many fields is reported once, at the first field.
#[test]
fn a_trait_of_many_places_is_one_line() {
    let folder = folder();
    let objects = "pub struct A {\n    a: candle_nn::Linear,\n    b: Box<dyn far::Layer>,\n    \
                   c: Vec<Box<dyn far::Layer>>,\n    d: Box<dyn Module>,\n}\n";
    let first = file(&folder, "a.rs", objects);
    let second = file(&folder, "b.rs", &objects.replace("struct A", "struct B"));
    let report = json(&[], folder.path());
    let todo = &report["files"][1]["todo"];
    assert_eq!(todo.as_array().unwrap().len(), 3, "{report}");
    assert_eq!(todo[0]["trait"], "Layer");
    let lines = said(&["port"], &[folder.path()]);
    let places: Vec<_> = lines.lines().filter(|line| line.contains("dyn ")).collect();
    let first = first.display();
    assert_eq!(
        places,
        [
            format!("{first}:3: `dyn Layer` may hide layers (4 places, this is the first)"),
            format!("{first}:5: `dyn Module` hides the layers in it (2 places, this is the first)"),
        ]
    );
    assert!(lines.ends_with(" 2 places left to you, 0 errors\n"), "{lines}");
    // A trait of one field is reported as before.
    let lines = said(&["port"], &[&second]);
    has(&lines, "b.rs:5: `dyn Module` hides the layers in it\n");
}

/// A trait of another crate of the workspace is known by its types.
#[test]
fn traits_of_a_workspace_are_known() {
    let folder = folder();
    let package = |name: &str| {
        let manifest = format!("[package]\nname = \"{name}\"\n");
        file(&folder, &format!("{name}/Cargo.toml"), &manifest);
    };
    package("plain-tools");
    package("app");
    let traits = "pub trait Tool {}\n\npub struct Hammer;\n\nimpl Tool for Hammer {}\n";
    let tools = file(&folder, "plain-tools/src/lib.rs", traits);
    let app = "use other::Far;\nuse plain_tools::Tool;\n\npub struct App {\n    \
               tool: Box<dyn Tool>,\n    far: Box<dyn Far>,\n}\n";
    file(&folder, "app/src/lib.rs", app);
    let report = json(&[], folder.path());
    assert_eq!(left(&report), ["`dyn Far` may hide layers"]);
    let hides = format!("{traits}\npub struct Saw(candle_nn::Linear);\n\nimpl Tool for Saw {{}}\n");
    fs::write(tools, hides).unwrap();
    let report = json(&[], folder.path());
    let hidden = "`dyn Tool` may hide layers";
    assert!(left(&report).contains(&hidden), "{report}");
}

/// A layer's type is resolved through a glob of the crate's modules.
#[test]
fn globs_of_the_crates_own_modules_are_resolved() {
    let folder = files([
        MANIFEST,
        ("src/lib.rs", "mod layers;\nmod model;\nmod other;\n"),
        ("src/layers/mod.rs", "mod dense;\n\npub use dense::*;\npub use super::*;\n"),
    ]);
    let dense = "use candle::Tensor;\n\npub struct Dense {\n    weight: Tensor,\n}\n\n\
                 impl Dense {\n    pub fn new(weight: Tensor) -> Self {\n        \
                 Self { weight }\n    }\n\n    \
                 pub fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {\n        \
                 xs.matmul(&self.weight.t()?)\n    }\n}\n\npub trait Act {}\n";
    file(&folder, "src/layers/dense.rs", dense);
    let model = "use crate::layers::*;\n\npub struct Model {\n    dense: Dense,\n    \
                 act: Box<dyn Act>,\n}\n";
    let model = file(&folder, "src/model.rs", model);
    // Child modules see the imports of a parent.
    let parent = "mod child;\n\nuse candle::{Result, Tensor};\nuse candle_nn::Linear;\n\n\
                  pub struct Parent {\n    a: Linear,\n}\n";
    file(&folder, "src/other/mod.rs", parent);
    let child = "use super::*;\n\npub struct Child {\n    parent: Parent,\n    a: Linear,\n}\n\n\
                 pub struct Own {\n    w: Tensor,\n    b: Tensor,\n}\n\nimpl Own {\n    \
                 pub fn new(w: Tensor, b: Tensor) -> Self {\n        Self { w, b }\n    }\n\n    \
                 pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        \
                 let xs = xs.matmul(&self.w.t()?)?;\n        Ok(xs.broadcast_add(&self.b)?)\n    }\n\
                 }\n";
    let child = file(&folder, "src/other/child.rs", child);
    let said = said(&["port", "--write"], &[folder.path()]);
    has(&said, " 0 places left to you, 0 errors");
    has(&read(&model), "#[derive(Quantizable)]\npub struct Model");
    let ported = read(&child);
    has(&ported, "#[derive(Clone, Quantizable)]\npub struct Child");
    has(&ported, "inner: nn::Linear");
    has(&ported, "use super::*;");
    let again = json(&[], folder.path());
    let files = again["files"].as_array().unwrap();
    assert!(files.iter().all(|file| file["changed"] == false), "{again}");
}

/// Functions that a module re-exports are not modules, and a test is a separate crate.
#[test]
fn names_that_are_passed_on_are_not_absent() {
    let model = "use candle_nn::Linear;\nuse crate::utils::{absent::A, repeat_kv};\n";
    let test = "mod common;\n\nuse crate::common::model;\nuse candle_nn::Linear;\n";
    let other = "use crate::absent::Other;\n\nimpl Other {\n    \
                 fn gelu(&self) -> R<Self> {\n        self.gelu()?\n    }\n}\n";
    let folder = files([
        MANIFEST,
        ("src/lib.rs", "mod model;\nmod utils;\n"),
        ("src/utils/mod.rs", "mod heads;\n\npub use heads::*;\n"),
        ("src/utils/heads.rs", "pub fn repeat_kv() {}\n"),
        ("src/model.rs", model),
        ("tests/model.rs", test),
        ("tests/common/mod.rs", "pub fn model() {}\n"),
        ("src/other.rs", other),
    ]);
    let report = json(&[], folder.path());
    assert_eq!(left(&report), ["`crate::utils::absent` is not in this crate"]);
}
