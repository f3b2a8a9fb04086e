//! `dynquant port`, run as a user runs it.

mod attention;
mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod crates;
mod heads;
mod norms;

use std::fs;
use std::path::{Path, PathBuf};

use common::{SMALL, command, dynquant, file, folder, has, printed, read, said, stderr, stdout};
use serde_json::Value;

fn json(args: &[&str], path: &Path) -> Value {
    common::json(&[&["port", "--json"], args].concat(), path)
}

/// The exit status of the command.
fn status(args: &[&str], path: &Path) -> Option<i32> {
    dynquant(&[&["port"], args].concat(), &[path]).status.code()
}

const PORTED: &str = "use candle_dynquant::nn::Linear;\nuse candle_dynquant::Quantizable;\n\n\
                      #[derive(Clone, Quantizable)]\npub struct A {\n    a: Linear,\n}\n";

/// Declares a type with a layer inside a macro, where the command cannot see it.
const MACRO: &str = "macro_rules! model {\n    ($($item:item)*) => { $($item)* };\n}\n\
                     model! {\n    pub struct B { b: candle_nn::Linear }\n}\n";

/// The diff that the command prints of a file of `golden`, and the places that are left, are what
/// the file of that name with `.diff` has, and what is written stays so. `DYNQUANT_UPDATE=1`
/// writes the diffs.
#[test]
fn files_become_what_is_expected() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = fs::read_dir(&golden).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|ext| ext == "rs"));
    names.sort();
    assert!(names.len() > 8);
    let mut wrong = Vec::new();
    for path in names {
        let name = path.file_name().unwrap().to_str().unwrap();
        let folder = folder();
        let copy = file(&folder, name, &read(&path));
        let diff = command(&["port"], &[Path::new(name)]).current_dir(&folder).output();
        let mut diff = stdout(&diff.unwrap());
        for todo in json(&[], &copy)["files"][0]["todo"].as_array().unwrap() {
            let what = todo["what"].as_str().unwrap();
            diff += &format!("left: line {}: {what}\n", todo["line"]);
        }
        let report = json(&["--write"], &copy);
        assert_eq!(report["files"][0]["error"], Value::Null, "{name}");
        // The lines of the diff are written, one after another.
        let written = read(&copy);
        let mut lines = written.lines();
        let shown = |line: &&str| line.starts_with([' ', '+']);
        for line in diff.lines().skip(2).filter(shown) {
            assert!(lines.any(|own| own == &line[1..]), "{name}: {line}");
        }
        let again = &json(&[], &copy)["files"][0];
        assert_eq!(again["changed"], false, "{name} changes again");
        assert_eq!(again["todo"], report["files"][0]["todo"], "{name}");
        let wanted = path.with_extension("diff");
        if std::env::var_os("DYNQUANT_UPDATE").is_some() {
            fs::write(&wanted, &diff).unwrap();
        } else if read(&wanted) != diff {
            wrong.push(diff);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file with a type in a module, held by `Model`: its fields, its constructor and its `forward`.
fn model(fields: &str, constructor: &str, body: &str) -> String {
    include_str!("model.txt")
        .replace("FIELDS", fields)
        .replace("MADE", constructor)
        .replace("BODY", body)
}

/// The cells of a table; an empty cell repeats the cell of the line before, and a line that is
/// indented further belongs to the row before.
fn table<const N: usize>(text: &str) -> Vec<[String; N]> {
    let mut lines = Vec::<String>::new();
    let text = text.trim_matches('\n').trim_end();
    let indent = text.len() - text.trim_start().len();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if line[indent..].starts_with(' ') => *last += &format!(" {}", line.trim()),
            _ => lines.push(line.trim().to_owned()),
        }
    }
    let mut rows = Vec::<[String; N]>::new();
    for line in lines {
        let cells = line.split('@').map(|cell| cell.trim().to_owned());
        let mut row: [String; N] = cells.collect::<Vec<_>>().try_into().unwrap();
        if let (Some(last), true) = (rows.last(), row[0].is_empty()) {
            row[..2].clone_from_slice(&last[..2]);
        }
        rows.push(row);
    }
    rows
}

/// Ports a text with a body in the place of `BODY`, and compares what then stands there: another
/// body, or the same one, with the note (`left`) or without (`stays`).
#[track_caller]
fn compare(text: &str, body: &str, expected: &str, note: &str) {
    let folder = folder();
    let path = file(&folder, "a.rs", &text.replace("BODY", body));
    let report = json(&["--write"], &path);
    assert_eq!(crates::left(&report), &[note][..usize::from(expected == "left")], "{body}");
    let ported = if ["left", "stays"].contains(&expected) { body } else { expected };
    has(&dense(&read(&path)), &dense(&format!("{ported} }} }}")));
    assert_eq!(json(&[], &path)["files"][0]["changed"], false, "{body}");
}

/// The text without spaces, and without commas that only line breaks need.
fn dense(text: &str) -> String {
    text.split_whitespace().collect::<String>().replace(",)", ")").replace(",}", "}")
}

#[test]
fn the_names_of_a_tuple_are_unknown_in_its_values() {
    let text = "use candle_core::{Result, Tensor};\nuse candle_nn::{LayerNorm, Module};\n\
        pub struct A { norm: LayerNorm }\n\
        impl A { fn f(&self, xs: Tensor, h: &Tensor) -> Result<Tensor> {\n\
        let (xs, ys) = (&xs, self.norm.forward(&xs.broadcast_add(h)?)?); xs + ys } }\n";
    let folder = folder();
    let path = file(&folder, "a.rs", text);
    json(&["--write"], &path);
    has(&dense(&read(&path)), "(&xs,self.norm.forward_add(&xs,h)?)");
}

/// No matrix of a user's type is skipped: its products are listed in whatever form, or a report
/// names the field.
#[test]
fn matrices_in_other_forms_are_not_skipped() {
    let folder = folder();
    let cases = r#"
        a: Tensor, b: Tensor @ Ok(Self { a: READ, b: READ })
            @ ops::f(&ops::f(xs, &self.a)?, &self.b) @ a b
        @ @ let Self { a, b } = self; xs.matmul(a)?.matmul(b) @ a b
        @ @ let f = |w: &Tensor| xs.matmul(w); f(&self.a)? + f(&self.b)? @ a b
        @ @ for w in [&self.a, &self.b] { self.product(xs, w)?; } @ a b
        @ @ for (w, _) in [(&self.a, &self.b)] { self.product(xs, w)?; } @ a
        @ @ fn g(x: &Tensor, w: &Tensor) { x.matmul(w) } g(xs, &self.a) @ a
        @ @ xs.conv1d(&self.a, 0, 1, 1, 1) @ -
        @ @ other::product(xs, &[&self.a, &self.b]) @ -
        @ @ xs.broadcast_mul(&self.a)?.sum(1)? + &self.b @ a
        @ @ let p = (xs.unsqueeze(1)? * &self.a)?; p.sum_keepdim(D::Minus1) @ a
        @ @ einsum("bi,ij->bj", &[xs, &self.a])?; einsum!("bi,ij->bj", xs, &self.b) @ a b
        @ @ xs.apply_with(ops::f, &self.a) @ a
        @ @ let f: fn(&Tensor, &Tensor) -> Result<Tensor> = ops::f; f(xs, &self.a) @ a
        @ @ (self.f)(xs, &self.a) @ a
        @ @ let w = (&self.a + &self.b)?; xs.matmul(&w) @ a b
        @ @ let n = self.a.sqr()?.sum_keepdim(1)?.sqrt()?; xs.matmul(&self.a.broadcast_div(&n)?) @ a
        @ @ xs.matmul(&Tensor::cat(&[&self.a, &self.b], 0)?.t()?) @ a b
        @ @ (xs + &self.a)?.matmul(&Tensor::cat(&[&self.b, xs], 0)?) @ -
        all: Vec<Tensor> @ let mut all = vec![]; all.push(READ); Ok(Self { all })
            @ for (i, w) in self.all.iter().enumerate() { xs.matmul(w)?; } @ all
        @ @ self.all.iter().try_fold(xs.clone(), |xs, w| xs.matmul(w)) @ all
        all: HashMap<u8, Tensor> @ Ok(Self { all: HashMap::from([(1, READ)]) })
            @ xs.matmul(&self.all[&1]) @ all
        @ @ xs.matmul(self.all.get(&1).unwrap()) @ all
        all: (Tensor, Tensor) @ Ok(Self { all: (READ, vb.get(n, "b")?) })
            @ let (w, b) = &self.all; xs.matmul(w)?.broadcast_add(b) @ all
        @ @ Self::all(&self.all).try_fold(xs, |xs, w| xs.matmul(&w.mT()?)) @ all
        a: Var @ Ok(Self { a: Var::from_tensor(&READ)? }) @ xs.matmul(self.a.as_tensor()) @ a
        a: Tensor @ Ok(Self { a: READ }) @ xs.matmul(&self.a.t().map_err(wrap)?) @ a
        @ @ xs.matmul(&Tensor::t(&self.a)?)?.matmul(std::ops::Deref::deref(&self.a)) @ a
        @ @ xs.matmul(&self.a.roll(1, 0)?.flip(&[0])?.pad_with_zeros(0, 1, 0)?.get_on_dim(0, i)?)
            @ a
        @ @ xs.matmul(&ops::turned(&self.a, 0)?) @ a
        @ @ xs.matmul(&self.half(0)?.t()?) @ a
        @ @ xs.matmul(&ops::softmax(&xs.broadcast_mul(&self.a)?)?) @ -
        @ @ xs.matmul(&self.a.dims4()?.0) @ -
        a: Option<Tensor> @ Ok(Self { a: Some(READ) })
            @ xs.matmul(self.a.as_ref().context("none")?) @ a
        @ @ xs.matmul(&self.a.as_ref().map(|w| w.t()).transpose()?.unwrap()) @ a
        @ @ if let Some(w) = &self.a { return xs.matmul(w); } @ a
        @ @ self.a.as_ref().map_or(xs, |w| xs.broadcast_matmul(w)) @ a
        @ @ self.a.as_ref().map_or(xs, |b| xs.broadcast_add(b))?.matmul(xs) @ -
        @ @ let Some(w) = &self.a else { return xs }; xs.matmul(w) @ a
        @ @ match &self.a { Some(w) => xs.matmul(&w.t()?), None => Ok(xs.clone()) } @ a
    "#;
    for [fields, constructor, body, listed] in &table(cases) {
        let constructor = constructor.replace("READ", "vb.get((n, 4), \"a\")?");
        let path = file(&folder, "a.rs", &model(fields, &constructor, body));
        let report = json(&["--write"], &path);
        let todo = report["files"][0]["todo"].as_array().unwrap().iter();
        let what: Vec<_> = todo.map(|todo| todo["what"].as_str().unwrap()).collect();
        let expected = listed.split(' ').filter(|name| *name != "-");
        let expected = expected
            .map(|name| format!("`{name}` of `Net` multiplies as a tensor, and is no layer"));
        assert_eq!(what, expected.collect::<Vec<_>>(), "{body}");
        assert!(!read(&path).contains("(skip)"), "{}", read(&path));
    }
}

/// A weight becomes a layer where its loader is known and products read it, not its values too.
/// A body may end its function and begin another.
#[test]
fn weights_of_other_loaders_and_readers_stay() {
    let folder = folder();
    let net = "use candle::{DType, Device, Result, Tensor};\nuse candle_nn::VarBuilder;\n\n\
               fn load_weight(vb: &VarBuilder, name: &str) -> Result<Tensor> { vb.get((4, 4), name) }\n\n\
               fn frequencies(size: usize) -> Result<Tensor> {\n    \
               let all: Vec<_> = (0..size).map(|i| 1f32 / (i as f32).exp()).collect();\n    \
               Tensor::from_vec(all, (1, size), &Device::Cpu)\n}\n\n\
               pub struct Net {\n    w: Tensor,\n}\n\nimpl Net {\n    \
               pub fn load(vb: VarBuilder, loader: &Loader) -> Result<Self> {\n        \
               let w = MADE;\n        Ok(Self { w })\n    }\n\n    \
               pub fn forward(&self, xs: &Tensor) -> Result<Tensor> { BODY }\n}\n";
    let cases = "
        GET @ xs.matmul(&self.w.t()?) @ layer
        GET @ xs.to_dtype(self.w.dtype())?.matmul(&self.w.t()?) @ left
        GET @ let ys = xs.matmul(&self.w.t()?)?; ys.reshape(((), self.outputs())) }
            fn outputs(&self) -> usize { self.w.dims()[0] @ left
        GET @ xs.matmul(&self.w.t()?) } pub fn of(&self) -> DType { self.w.dtype() } }
            pub struct Outer { inner: Net } impl Outer {
            pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
            self.inner.forward(xs)?.to_dtype(self.inner.of()) @ left
        GET @ xs.matmul(&self.w.t().unwrap()) @ left
        GET @ xs.matmul(&self.w.t().unwrap()) }
            pub fn project(&self, xs: &Tensor) -> Result<Tensor> { xs.matmul(&self.w.t()?) @ left
        GET @ if !xs.device().is_cuda() { return library(&self.w, xs);
            } xs.matmul(&self.w.t()?) @ left
        GET @ if xs.device().is_cuda() || xs.device().is_metal() {
            return xs.to_dtype(self.w.dtype()); } match xs.device() {
            Device::Cuda(_) | Device::Metal(_) => library(&self.w, xs),
            Device::Cpu => xs.matmul(&self.w.t()?) } @ layer
        loader.tensor(NAME)? @ xs.matmul(&self.w.t()?) @ left
        crate::helpers::fetch(&vb)? @ xs.matmul(&self.w.t()?) @ absent
        load_weight(&vb, NAME)? @ xs.matmul(&self.w.t()?) @ left
        candle::safetensors::load(NAME, &Device::Cpu)?[NAME].clone() @ xs.matmul(&self.w.t()?)
            @ left
        frequencies(4)? @ xs.matmul(&self.w) @ stays
        Tensor::ones((1, 4), DType::F32, &Device::Cpu)? @ xs.matmul(&self.w) @ stays
    ";
    let left = "`w` of `Net` multiplies as a tensor, and is no layer";
    for [made, body, expected] in &table(cases) {
        let made = made.replace("GET", "vb.get((4, 4), NAME)?").replace("NAME", "\"w\"");
        let text = net.replace("MADE", &made).replace("BODY", body);
        let path = file(&folder, "a.rs", &text);
        let notes = match expected.as_str() {
            "left" => vec![left],
            "absent" => vec!["`crate::helpers` is not in this crate", left],
            _ => vec![],
        };
        assert_eq!(crates::left(&json(&["--write"], &path)), notes, "{made} {body}");
        let is_layer = read(&path).contains("inner: nn::Linear");
        assert_eq!(is_layer, expected == "layer", "{}", read(&path));
    }
}

/// Products in functions whose errors are not candle's, and an accessor that is constant.
#[test]
fn products_become_calls_whatever_the_function_returns() {
    let text = "
use candle::{Result, Tensor};
use candle_nn::VarBuilder;

pub struct MyError(String);

type MyResult<T> = std::result::Result<T, MyError>;

impl From<candle::Error> for MyError {
    fn from(error: candle::Error) -> Self {
        Self(error.to_string())
    }
}

pub struct Net {
    w: Tensor,
    bias: Option<Tensor>,
}

impl Net {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), \"w\")?;
        let bias = vb.get(size, \"bias\").ok();
        Ok(Self { w, bias })
    }

    pub fn BODY
    }
}
";
    let cases = "
        f(&self, h: &Tensor) -> MyResult<Tensor> { let ys = WEIGHT; let ys = match &self.bias {
            None => Ok(ys), Some(bias) => ys.broadcast_add(bias), }?; Ok(ys)
            @ Ok(Self { inner: nn::Linear::new(w, bias) }) }
            pub fn f(&self, h: &Tensor) -> MyResult<Tensor> { let ys = CALL?; Ok(ys)
        f(&self, h: &Tensor) -> MyResult<Tensor> { let ys = WEIGHT; match &self.bias {
            None => Ok(ys), Some(bias) => Ok(ys.broadcast_add(bias)?), }
            @ Ok(Self { inner: nn::Linear::new(w, None), bias }) }
            pub fn f(&self, h: &Tensor) -> MyResult<Tensor> { let ys = CALL?; match &self.bias {
            None => Ok(ys), Some(bias) => Ok(ys.broadcast_add(bias)?), }
        f(&self, h: &Tensor) -> MyResult<Tensor> { Ok(WEIGHT) @ -> MyResult<Tensor> { Ok(CALL?)
        f(&self, h: &Tensor) -> anyhow::Result<Tensor> { Ok(WEIGHT)
            @ -> anyhow::Result<Tensor> { Ok(CALL?)
        f(&self, h: &Tensor) -> Result<Tensor> { Ok(WEIGHT) @ -> Result<Tensor> { CALL
        f(&self, hs: &[Tensor]) -> Result<Vec<Tensor>> { let each = |h: &Tensor| Ok(WEIGHT);
            let all: MyResult<Vec<Tensor>> = hs.iter().map(each).collect(); all.map_err(wrap)
            @ let each = |h: &Tensor| Ok(CALL?);
            let all: MyResult<Vec<Tensor>> = hs.iter().map(each).collect(); all.map_err(wrap)
        f(&self, h: &Tensor) -> MyResult<Tensor> { Ok(WEIGHT) }
            pub const fn weight(&self) -> &Tensor { &self.w @ left
    ";
    let plain = text.replace("    bias: Option<Tensor>,\n", "").replace(", bias }", " }");
    let plain = plain.replace("        let bias = vb.get(size, \"bias\").ok();\n", "");
    for [body, expected] in &table(cases) {
        let text = if body.contains("bias") { text } else { &plain };
        let body = body.replace("WEIGHT", "h.matmul(&self.w.t()?)?");
        let expected = expected.replace("CALL", "h.apply(&self.inner)");
        let note = "`w` of `Net` multiplies as a tensor, and is no layer";
        compare(text, &body, &expected, note);
    }
}

/// Weights of layers, layers made in `forward`, and convolutions that are methods of tensors.
#[test]
fn products_of_layers_and_convolutions_are_listed() {
    let folder = folder();
    let cases = r#"
        a: Linear @ candle_nn::linear(n, 4, vb)? @ xs.matmul(&self.a.weight().t()?)
            @ weight of `self.a`, a layer, multiplies
        a: Vec<Linear> @ vec![candle_nn::linear(n, 4, vb)?]
            @ for a in &self.a { let w = a.weight(); xs.matmul(&w.i(0)?)?; }
            @ weight of `a`, a layer,
        a: Tensor @ vb.get((n, 4), "a")?
            @ Linear::new(self.a.narrow(0, 0, 1)?, None).forward(xs)
            @ a layer of `a` of `Net` is made at each call
        @ @ let l = Linear::new(self.half(1)?, None); xs.apply(&l) @ a layer of `a` of `Net`
        a: Tensor @ vb.get((4, n, 1), "a")? @ xs.conv1d(&self.a, 0, 1, 1, 1) @ `conv1d` is no layer
        a: Tensor @ vb.get((4, MANY, k), "a")?
            @ xs.conv1d_with_algo(&self.a, 0, 2, 1, ONE, algo) @ `conv1d_with_algo` is no layer
        a: Tensor @ vb.get((4, n, 3, 3), "a")? @ xs.conv2d(&self.a, 1, 2, 1, self.groups)
            @ `conv2d` is no layer
        a: Tensor @ vb.get((n, 4, 8), "a")? @ xs.conv_transpose1d(&self.a, 0, 0, 4, 1, 1)
            @ `conv_transpose1d` is no layer
        a: Tensor @ vb.get((4, n, 3), "a")? @ xs.conv1d(&self.a, 0, 1, 1, 4) @ -
        a: Tensor @ vb.get((4, ONE, 3), "a")? @ xs.conv1d(&self.a, 0, 1, 1, 1) @ -
        a: Tensor @ Tensor::ones((4, n, 3), d, c)? @ xs.conv1d(&self.a, 0, 1, 1, 1) @ -
        a: Conv1d @ Conv1d::new(vb.get((4, n, 1), "a")?, None, c) @ xs.apply(&self.a) @ -
        a: Conv1d @ candle_nn::conv1d(4, 4, ONE, c, vb)? @ xs.apply(&self.a) @ -
        a: u8 @ 0 @ let w = vb.get((4, n), "w")?; xs.matmul(&w.t()?)
            @ `vb.get(..)` is read and multiplies as a tensor
        @ @ let f = move |w: &Tensor| xs.matmul(w); f(&vb.get((4, n), "w")?) @ `vb.get(..)` is read
        @ @ seq().add_fn(move |xs| xs.matmul(&vb.get(4, "w")?)).forward(xs) @ `vb.get(..)` is read
        @ @ let all = candle::safetensors::load("w", d)?; xs.matmul(&all["w"]) @ `load(..)` is read
        @ @ candle_nn::linear(4, 4, vb)?.forward(xs) @ a layer, `linear(..)`, is made at each call
    "#;
    let others = "use candle_nn::Conv1d;\nconst ONE: usize = 1;\nconst MANY: usize = 64;\n";
    for [fields, made, body, expected] in &table(cases) {
        let made = format!("let a = {made}; Ok(Self {{ a }})");
        let net = format!("{others}    pub struct Net");
        let text = model(fields, &made, body).replace("    pub struct Net", &net);
        let path = file(&folder, "a.rs", &text);
        let todo = &json(&[], &path)["files"][0]["todo"];
        let what = todo[0]["what"].as_str().unwrap_or("-");
        assert!(what.contains(expected), "{made} {body}: {todo}");
    }
}

/// A constant table is kept, whatever reads it.
#[test]
fn tables_are_not_advised_to_be_layers() {
    let folder = folder();
    for (field, name, is_table) in [
        ("mel_filters", "a", true),
        ("fb", "mel_filters", true),
        ("window", "w", true),
        ("mel_proj", "mel_proj", false),
    ] {
        let made = format!("Ok(Self {{ {field}: vb.get((n, 4), \"{name}\")? }})");
        let body = format!("self.{field}.matmul(xs)");
        let path = file(&folder, "a.rs", &model(&format!("{field}: Tensor"), &made, &body));
        let todo = &json(&[], &path)["files"][0]["todo"];
        let advice = todo[0]["advice"].as_str().unwrap();
        assert_eq!(advice.starts_with("put `// dynquant: keep`"), is_table, "{advice}");
    }
}

#[test]
fn a_diff_is_printed_and_nothing_is_written() {
    let folder = folder();
    let path = file(&folder, "a.rs", SMALL);
    let diff = printed(&["port"], &[&path]);
    has(&diff, "-use candle_nn::Linear;\n");
    has(&diff, "+#[derive(Clone, Quantizable)]\n");
    assert!(!diff.contains('\u{1b}'), "no colours to a pipe");
    assert_eq!(read(&path), SMALL);
}

#[test]
fn check_tells_by_its_status() {
    let folder = folder();
    let path = file(&folder, "a.rs", SMALL);
    assert_eq!(status(&["--check"], &path), Some(1));
    assert_eq!(read(&path), SMALL);
    assert_eq!(status(&["--write"], &path), Some(0));
    assert_eq!(read(&path), PORTED);
    assert_eq!(status(&["--check"], &path), Some(0));
    assert_eq!(printed(&["port"], &[&path]), "");
    let left = "pub struct B {\n    b: Box<dyn Module>,\n}\n";
    let left = file(&folder, "b.rs", left);
    assert_eq!(status(&["--check"], &left), Some(1));
}

#[test]
fn line_ends_marks_and_attributes_stay() {
    let folder = folder();
    let text = format!("\u{feff}#![allow(unused)]\n//! ü\n{SMALL}").replace('\n', "\r\n");
    let path = file(&folder, "a.rs", &text);
    said(&["port", "--write"], &[&path]);
    let ported = read(&path);
    assert_eq!(ported.matches('\n').count(), ported.matches("\r\n").count());
    let start = "\u{feff}#![allow(unused)]\r\n//! ü\r\n";
    assert!(ported.starts_with(start), "{ported:?}");
    has(&ported, "#[derive(Clone, Quantizable)]\r\npub struct A");
}

#[test]
fn bad_input_is_an_error_with_its_line_and_the_others_are_done() {
    let folder = folder();
    let deep = format!("fn f() {{ {} }}", "(".repeat(100_000));
    let long = format!("fn f() {{ {}1 }}", "1+".repeat(200_000));
    let closures = format!("const F: G = {}1;", "|a,b|".repeat(300_000));
    let chain = format!("\nconst A: B = {}if a{{}};", "if a{}else ".repeat(300_000));
    let many = (0..=100_000).map(|i| format!("struct A{i};")).collect();
    let twice = "struct A(candle_nn::Linear);\nstruct A {}\n";
    let cases = [
        ("no_rust.rs", "fn f() {}\n\nstruct {\n".to_owned(), 3),
        ("open.rs", "fn f() {\n".to_owned(), 1),
        ("deep.rs", deep, 1),
        ("long.rs", long, 1),
        ("closures.rs", closures, 1),
        ("chain.rs", chain, 2),
        ("types.rs", many, 1),
        ("twice.rs", twice.to_owned(), 2),
        ("macro.rs", format!("{SMALL}\n{MACRO}"), 10),
    ];
    for (name, text, line) in cases {
        let path = file(&folder, name, &text);
        let output = dynquant(&["port", "--write"], &[&path]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        has(&stderr(&output), &format!("{}:{line}: error: ", path.display()));
        assert_eq!(read(&path), text);
    }
    // The author has acknowledged the place, or derived the trait there.
    for text in [
        MACRO.replace("model! {", "// dynquant: keep\nmodel! {"),
        MACRO.replace("pub struct", "#[derive(Quantizable)] pub struct"),
    ] {
        said(&["port"], &[&file(&folder, "macro.rs", &text)]);
    }
    let path = folder.path().join("bytes.rs");
    fs::write(&path, b"// a\n// \xff\n").unwrap();
    let good = file(&folder, "good.rs", SMALL);
    let absent = folder.path().join("absent.rs");
    let output = dynquant(&["port", "--write"], &[&path, &absent, &good]);
    assert_eq!(output.status.code(), Some(1));
    has(&stderr(&output), "bytes.rs:2: error: not UTF-8");
    has(&stderr(&output), "absent.rs: error: ");
    assert_eq!(read(&good), PORTED);
}

#[test]
fn odd_files_are_no_trouble() {
    let folder = folder();
    let cases = [
        "",
        "\n",
        "//",
        "/* */",
        "#!/bin/sh\n",
        "use;",
        "use candle_nn::{};\n",
        "fn f(){r#fn()}",
        "use candle_nn::{{Linear}};",
        "struct A(candle_nn::Linear)",
        "mod a { struct B(candle_nn::Linear); }",
        "union U { a: candle_nn::Linear }",
        "use {candle_nn::{self as x, Linear}, std};struct A(Linear);",
        "struct r#Type { r#fn: candle_nn::Linear }",
        "fn f() { x.silu().silu()?.silu() }",
        "trait T { fn f(x: &Tensor) { x.gelu()?; } }",
        "use ::candle_nn::Linear as L; struct A(L);",
        "fn f() { struct A(candle_nn::Linear); } fn g() { struct A; }",
        "struct A; struct A {}",
    ];
    for text in cases {
        let path = file(&folder, "a.rs", text);
        let first = status(&["--write"], &path);
        assert!(first.is_some_and(|code| code < 2), "{text:?}: {first:?}");
        let ported = read(&path);
        status(&["--write"], &path);
        assert_eq!(read(&path), ported, "{text:?}");
    }
    // Every prefix of a file.
    let whole = include_str!("../golden/decoder.rs");
    for end in (0..whole.len()).step_by(97) {
        let path = file(&folder, "a.rs", &whole[..end]);
        let code = status(&[], &path);
        assert!(code.is_some_and(|code| code < 2), "{end}");
    }
}

#[cfg(unix)]
#[test]
fn folders_links_and_rights() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    assert_eq!(status(&[], folder.path()), Some(0), "an empty folder");
    let one = file(&folder, "src/one.rs", SMALL);
    file(&folder, "src/inner/two.rs", SMALL);
    file(&folder, "src/notes.txt", "candle_nn");
    symlink(folder.path(), folder.path().join("src/round")).unwrap();
    symlink(&one, folder.path().join("link.rs")).unwrap();
    let report = json(&[], &folder.path().join("src"));
    assert_eq!(report["files"].as_array().unwrap().len(), 2);

    fs::set_permissions(&one, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link.rs");
    said(&["port", "--write"], &[&link]);
    assert!(link.is_symlink());
    assert_eq!(read(&one), PORTED);
    let mode = fs::metadata(&one).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);

    let closed = file(&folder, "closed.rs", SMALL);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o440)).unwrap();
    let output = dynquant(&["port", "--write"], &[&closed]);
    assert_eq!(output.status.code(), Some(1));
    has(&stderr(&output), "read-only");
    let fifo = folder.path().join("fifo.rs");
    common::fifo(&fifo);
    for arg in ["--check", "--write"] {
        let output = dynquant(&["port", arg], &[&fifo]);
        assert_eq!(output.status.code(), Some(1));
        has(&stderr(&output), "expected a regular file, got a fifo");
    }
    fs::remove_file(&fifo).unwrap();
    assert_eq!(read(&closed), SMALL);
    let left = fs::read_dir(folder.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "nothing is left beside: {left:?}");
}

#[test]
fn usage_errors_have_a_status_of_their_own() {
    for args in
        [&["port"][..], &["port", "--wrong", "a.rs"], &["port", "--check", "--write", "a.rs"], &[]]
    {
        assert_eq!(dynquant(args, &[]).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(dynquant(&["port", "--help"], &[]).status.code(), Some(0));
}

/// Every model of candle-transformers in the cargo registry ports without an error, and a second
/// run changes nothing. `DYNQUANT_LONG=1 cargo test -p dynquant -- --nocapture` shows the figures.
#[test]
fn the_models_of_candle_transformers() {
    if std::env::var_os("DYNQUANT_LONG").is_none() {
        return eprintln!("skipped: DYNQUANT_LONG is not set");
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| std::env::home_dir().unwrap().join(".cargo"));
    let sources = fs::read_dir(home.join("registry/src")).unwrap();
    let models = sources.map(|entry| entry.unwrap().path().join("candle-transformers-0.11.1/src"));
    let models = models.into_iter().find(|path| path.is_dir());
    let Some(models) = models else {
        return eprintln!("skipped: no candle-transformers 0.11.1");
    };
    let folder = folder();
    copy(&models, folder.path());
    let first = json(&["--write"], folder.path());
    let files = first["files"].as_array().unwrap();
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for file in files {
        assert_eq!(file["error"], Value::Null, "{file}");
        for todo in file["todo"].as_array().unwrap() {
            let what = todo["what"].as_str().unwrap();
            *kinds.entry(what.to_owned()).or_default() += 1;
        }
    }
    let changed = files.iter().filter(|file| file["changed"] == true).count();
    eprintln!("{} files, {changed} changed, left: {kinds:#?}", files.len());
    assert!(files.len() > 100 && changed > 100);
    let second = json(&[], folder.path());
    for file in second["files"].as_array().unwrap() {
        assert_eq!(file["changed"], false, "{file}");
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&path, &target);
        } else {
            fs::write(target, fs::read(&path).unwrap()).unwrap();
        }
    }
}
