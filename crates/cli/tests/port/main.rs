//! `dynquant port`, run as a user runs it.

#[path = "../common/mod.rs"]
mod common;
mod crates;

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

/// The cells of a table; an empty cell repeats the cell of the line before.
fn table<const N: usize>(text: &str) -> Vec<[&str; N]> {
    let mut rows = Vec::<[&str; N]>::new();
    for line in text.trim().lines() {
        let mut row: [&str; N] =
            line.split('@').map(str::trim).collect::<Vec<_>>().try_into().unwrap();
        if let (Some(last), true) = (rows.last(), row[0].is_empty()) {
            row[..2].copy_from_slice(&last[..2]);
        }
        rows.push(row);
    }
    rows
}

/// No matrix of a user's type is skipped: its products are listed in whatever form, or a report
/// names the field.
#[test]
fn matrices_in_other_forms_are_not_skipped() {
    let folder = folder();
    let cases = r#"
        a: Tensor, b: Tensor @ Ok(Self { a: READ, b: READ }) @ ops::f(&ops::f(xs, &self.a)?, &self.b) @ a b
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
        all: Vec<Tensor> @ let mut all = vec![]; all.push(READ); Ok(Self { all }) @ for (i, w) in self.all.iter().enumerate() { xs.matmul(w)?; } @ all
        @ @ self.all.iter().try_fold(xs.clone(), |xs, w| xs.matmul(w)) @ all
        all: HashMap<u8, Tensor> @ Ok(Self { all: HashMap::from([(1, READ)]) }) @ xs.matmul(&self.all[&1]) @ all
        @ @ xs.matmul(self.all.get(&1).unwrap()) @ all
        all: (Tensor, Tensor) @ Ok(Self { all: (READ, vb.get(n, "b")?) }) @ let (w, b) = &self.all; xs.matmul(w)?.broadcast_add(b) @ all
        @ @ Self::all(&self.all).try_fold(xs, |xs, w| xs.matmul(&w.mT()?)) @ all
        a: Var @ Ok(Self { a: Var::from_tensor(&READ)? }) @ xs.matmul(self.a.as_tensor()) @ a
        a: Tensor @ Ok(Self { a: READ }) @ xs.matmul(&self.a.t().map_err(wrap)?) @ a
        @ @ xs.matmul(&Tensor::t(&self.a)?)?.matmul(std::ops::Deref::deref(&self.a)) @ a
        @ @ xs.matmul(&self.a.roll(1, 0)?.flip(&[0])?.pad_with_zeros(0, 1, 0)?.get_on_dim(0, i)?) @ a
        @ @ xs.matmul(&ops::turned(&self.a, 0)?) @ a
        @ @ xs.matmul(&self.half(0)?.t()?) @ a
        @ @ xs.matmul(&ops::softmax(&xs.broadcast_mul(&self.a)?)?) @ -
        @ @ xs.matmul(&self.a.dims4()?.0) @ -
        a: Option<Tensor> @ Ok(Self { a: Some(READ) }) @ xs.matmul(self.a.as_ref().context("none")?) @ a
        @ @ xs.matmul(&self.a.as_ref().map(|w| w.t()).transpose()?.unwrap()) @ a
        @ @ if let Some(w) = &self.a { return xs.matmul(w); } @ a
        @ @ self.a.as_ref().map_or(xs, |w| xs.broadcast_matmul(w)) @ a
        @ @ self.a.as_ref().map_or(xs, |b| xs.broadcast_add(b))?.matmul(xs) @ -
        @ @ let Some(w) = &self.a else { return xs }; xs.matmul(w) @ a
    "#;
    for [fields, constructor, body, listed] in table(cases) {
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

/// Weights of layers, layers made in `forward`, and convolutions that are methods of tensors.
#[test]
fn products_of_layers_and_convolutions_are_listed() {
    let folder = folder();
    let cases = r#"
        a: Linear @ candle_nn::linear(n, 4, vb)? @ xs.matmul(&self.a.weight().t()?) @ weight of `self.a`, a layer, multiplies
        a: Vec<Linear> @ vec![candle_nn::linear(n, 4, vb)?] @ for a in &self.a { let w = a.weight(); xs.matmul(&w.i(0)?)?; } @ weight of `a`, a layer,
        a: Tensor @ vb.get((n, 4), "a")? @ Linear::new(self.a.narrow(0, 0, 1)?, None).forward(xs) @ a layer of `a` of `Net` is made at each call
        @ @ let l = Linear::new(self.half(1)?, None); xs.apply(&l) @ a layer of `a` of `Net`
        a: Tensor @ vb.get((4, n, 1), "a")? @ xs.conv1d(&self.a, 0, 1, 1, 1) @ `conv1d` is no layer
        a: Tensor @ vb.get((4, MANY, k), "a")? @ xs.conv1d_with_algo(&self.a, 0, 2, 1, ONE, algo) @ `conv1d_with_algo` is no layer
        a: Tensor @ vb.get((4, n, 3, 3), "a")? @ xs.conv2d(&self.a, 1, 2, 1, self.groups) @ `conv2d` is no layer
        a: Tensor @ vb.get((n, 4, 8), "a")? @ xs.conv_transpose1d(&self.a, 0, 0, 4, 1, 1) @ `conv_transpose1d` is no layer
        a: Tensor @ vb.get((4, n, 3), "a")? @ xs.conv1d(&self.a, 0, 1, 1, 4) @ -
        a: Tensor @ vb.get((4, ONE, 3), "a")? @ xs.conv1d(&self.a, 0, 1, 1, 1) @ -
        a: Tensor @ Tensor::ones((4, n, 3), d, c)? @ xs.conv1d(&self.a, 0, 1, 1, 1) @ -
        a: Conv1d @ Conv1d::new(vb.get((4, n, 1), "a")?, None, c) @ xs.apply(&self.a) @ -
        a: Conv1d @ candle_nn::conv1d(4, 4, ONE, c, vb)? @ xs.apply(&self.a) @ -
        a: u8 @ 0 @ let w = vb.get((4, n), "w")?; xs.matmul(&w.t()?) @ `vb.get(..)` is read and multiplies as a tensor
        @ @ let f = move |w: &Tensor| xs.matmul(w); f(&vb.get((4, n), "w")?) @ `vb.get(..)` is read
        @ @ seq().add_fn(move |xs| xs.matmul(&vb.get(4, "w")?)).forward(xs) @ `vb.get(..)` is read
        @ @ let all = candle::safetensors::load("w", d)?; xs.matmul(&all["w"]) @ `load(..)` is read
        @ @ candle_nn::linear(4, 4, vb)?.forward(xs) @ a layer, `linear(..)`, is made at each call
    "#;
    let others = "use candle_nn::Conv1d;\nconst ONE: usize = 1;\nconst MANY: usize = 64;\n";
    for [fields, made, body, expected] in table(cases) {
        let made = format!("let a = {made}; Ok(Self {{ a }})");
        let net = format!("{others}    pub struct Net");
        let text = model(fields, &made, body).replace("    pub struct Net", &net);
        let path = file(&folder, "a.rs", &text);
        let todo = &json(&[], &path)["files"][0]["todo"];
        let what = todo[0]["what"].as_str().unwrap_or("-");
        assert!(what.contains(expected), "{made} {body}: {todo}");
    }
}

/// A norm in a field is folded where that is certain, else listed if it follows a convolution.
#[test]
fn norms_in_fields_are_folded_where_that_is_certain() {
    let folder = folder();
    file(&folder, "reads.rs", "fn f(a: &A) { a.bn.eps(); }\n");
    let text = "use candle::{ModuleT, Result, Tensor};\n\
                use candle_nn::{batch_norm, conv1d, BatchNorm, Conv1d, VarBuilder};\n\n\
                struct Net {\n    conv: Conv1d,\n    bn: BatchNorm,\n    n: usize,\n}\n\n\
                impl Net {\n    fn new(n: usize, vb: VarBuilder) -> Result<Self> {\n        \
                let conv = conv1d(n, n, 3, Default::default(), vb.pp(\"c\"))?;\n        \
                let bn = batch_norm(n, 1e-5, vb.pp(\"n\"))?;\n        \
                Ok(Self { conv, bn, n })\n    }\n\n    \
                fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        \
                xs.apply(&self.conv)?.apply_t(&self.bn, false)\n    }\n}\n";
    let cases = r#"
        xs.apply( @ xs.apply( @ folded
        xs.apply( @ tracing::span!(Level::TRACE, "conv-bn"); xs.apply( @ folded
        conv: Conv1d @ pub conv: Conv1d @ left
        struct Net @ type Other = Net; struct Net @ left
        Self { conv, bn, n } @ Self { bn, n, conv } @ folded
        Self { conv, bn, n } @ Self { n, conv: conv1d(n, n, 3, c, vb.pp("c"))?, bn: batch_norm(n, 1e-5, vb)? } @ folded
        xs.apply(&self.conv)? @ self.conv.forward(xs)? @ folded
        xs.apply(&self.conv)? @ let ys = xs.apply(&self.conv)?; ys @ folded
        bn: BatchNorm @ pub bn: BatchNorm @ left
        bn: BatchNorm @ #[cfg(feature = "bn")] bn: BatchNorm @ left
        xs.apply( @ self.bn.eps(); xs.apply( @ left
        xs.apply( @ self.conv.weight(); xs.apply( @ left
        xs.apply( @ println!("{:?}", self.bn); xs.apply( @ left
        xs.apply( @ let Self { bn, .. } = self; xs.apply( @ left
        xs.apply( @ |other: &Self| other.bn.eps(); xs.apply( @ left
        Self { conv, bn, n } @ if n > 4 { Self { conv, bn, n } } else { Self { n, conv, bn } } @ left
        Self { conv, bn, n } @ (|| Self { conv, bn, n })() @ left
        Self { conv, bn, n } @ Self { conv: if n > 4 { conv } else { conv1d(vb)? }, bn, n } @ left
        Self { conv, bn, n } @ Self { bn: batch_norm(n, 1e-5, vb)?, conv, n } @ left
        xs.apply( @ self.bn.forward_t(&self.conv.forward(xs)?, false)?; xs.apply( @ left
        , false) @ , self.n > 0) @ stays
        xs.apply(&self.conv)? @ let ys = xs.apply(&self.conv)?; ys.relu()?; ys @ stays
        xs.apply(&self.conv)? @ let ys = xs.apply(&self.conv)?; if self.n > 0 { return ys.apply_t(&self.bn, false) } xs @ stays
        xs.apply(&self.conv)? @ xs.apply(&self.conv)?.relu()? @ stays
    "#;
    for [from, to, expected] in table(cases) {
        assert!(text.contains(from), "{from}");
        let path = file(&folder, "net.rs", &text.replace(from, to));
        let report = json(&["--write"], folder.path());
        let is_left = report.to_string().contains("a batch norm stays");
        let written = read(&path);
        let is_folded = written.contains(".absorb_bn(&") && !written.contains("BatchNorm");
        let found = match (is_folded, is_left) {
            (true, false) => "folded",
            (false, true) => "left",
            _ => "stays",
        };
        assert_eq!(found, expected, "{from} {to}: {report}\n{written}");
    }
    // A module of the type's module may read its fields.
    file(&folder, "reads.rs", "impl super::Net { fn f(&self) {} }\n");
    let path = file(&folder, "net.rs", text);
    assert!(json(&[], folder.path()).to_string().contains("a batch norm stays"), "{path:?}");
}

/// A norm that is loaded behind the call of the convolution, and a wrapper that calls its
/// convolution twice.
#[test]
fn norms_stay_where_a_fold_would_reach_other_calls() {
    let folder = folder();
    let head = "use candle::{Module, ModuleT, Result, Tensor};\n\
                use candle_nn::{batch_norm, conv1d, BatchNorm, Conv1d, VarBuilder};\n\n";
    let late = "fn stem(xs: &Tensor, vb: VarBuilder) -> Result<Tensor> {\n    \
                let c1 = conv1d(3, 8, 3, Default::default(), vb.pp(\"c\"))?;\n    \
                let x1 = c1.forward(xs)?;\n    \
                let b1 = batch_norm(8, 1e-5, vb.pp(\"b\"))?;\n    \
                b1.forward_t(&x1, false)?.relu()\n}\n";
    let twice = "struct Twice {\n    inner: Conv1d,\n}\n\n\
                 impl Module for Twice {\n    fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        \
                 let xs = self.inner.forward(xs)?.relu()?;\n        self.inner.forward(&xs)\n    }\n}\n\n\
                 struct Net {\n    conv: Twice,\n    bn: BatchNorm,\n}\n\n\
                 impl Net {\n    fn new(conv: Twice, bn: BatchNorm) -> Result<Self> {\n        \
                 Ok(Self { conv, bn })\n    }\n\n    \
                 fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        \
                 let ys = self.conv.forward(xs)?;\n        self.bn.forward_t(&ys, false)\n    }\n}\n";
    for text in [late, twice] {
        let path = file(&folder, "net.rs", &format!("{head}{text}"));
        json(&["--write"], &path);
        assert!(!read(&path).contains("absorb_bn"), "{}", read(&path));
    }
}

/// A wrapper that implements `Drop`, errors that candle's do not become, a condition that takes a
/// variable each time, and a module in a file that is not given.
#[test]
fn norms_stay_where_a_fold_would_not_compile() {
    let folder = folder();
    let text = "use candle::{Module, ModuleT, Tensor};\n\
                use candle_nn::{BatchNorm, Conv1d, Func, VarBuilder};\n\
                use candle::Result;\n\n\
                struct Padded {\n    inner: Conv1d,\n    pad: usize,\n}\n\n\
                impl Module for Padded {\n    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {\n        \
                self.inner.forward(&xs.pad_with_zeros(2, 0, self.pad)?)\n    }\n}\n\n\
                fn conv(vb: VarBuilder) -> Result<Conv1d> {\n    load(vb)\n}\n\n\
                fn norm(vb: VarBuilder) -> Result<BatchNorm> {\n    load(vb)\n}\n\n";
    let fields = "struct Net {\n    conv: Padded,\n    bn: BatchNorm,\n}\n\n\
                  impl Net {\n    fn new(pad: usize, vb: VarBuilder) -> Result<Self> {\n        \
                  let inner = conv(vb.clone())?;\n        let bn = norm(vb)?;\n        \
                  let conv = Padded { inner, pad };\n        Ok(Self { conv, bn })\n    }\n\n    \
                  fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {\n        \
                  xs.apply(&self.conv)?.apply_t(&self.bn, false)\n    }\n}\n";
    let closure = "fn block(vb: VarBuilder) -> Result<Func<'static>> {\n    \
                   let conv = conv(vb.clone())?;\n    let bn = norm(vb)?;\n    \
                   Ok(Func::new(move |xs| xs.apply(&conv)?.apply_t(&bn, false)))\n}\n";
    let each = "fn halved(xs: &Tensor, vb: VarBuilder) -> Result<usize> {\n    \
                let conv = conv(vb.clone())?;\n    let bn = norm(vb)?;\n    let mut n = 0;\n    \
                let ys = conv.forward(xs)?;\n    \
                while n < size(bn.forward_t(&ys, false)?) {\n        n += 1;\n    }\n    Ok(n)\n}\n";
    let once = each.replace("while", "if");
    let (drop, alias) = (
        "struct Padded @ impl Drop for Padded { fn drop(&mut self) {} } struct Padded",
        "use candle::Result; @ type Result<T> = std::result::Result<T, Text>; struct Text;",
    );
    let cases = [
        (fields, "@", true),
        (closure, "@", true),
        (&once, "@", true),
        (fields, drop, false),
        (fields, alias, false),
        (closure, alias, false),
        (each, "@", false),
        (fields, "use candle::Result; @ use crate::Result;", false),
        (closure, "fn conv @ fn fill(map: &mut VarMap) { map.load(\"a\"); } fn conv", false),
        (fields, "use candle::Result; @ use anyhow::Result;", true),
        (fields, "norm(vb)?; @ candle_nn::batch_norm(4, 1e-5, vb)?;", true),
        (closure, "struct Padded @ mod apart; struct Padded", true),
        (fields, "struct Padded @ mod apart; struct Padded", false),
        (fields, "struct Padded @ mod beside; struct Padded", true),
        (fields, "struct Padded @ mod above; struct Padded", false),
        (fields, "struct Padded @ #[path = \"a.rs\"] mod beside; struct Padded", false),
        (fields, "struct Padded @ mod inner { mod beside; } struct Padded", false),
    ];
    file(&folder, "net/apart.rs", "fn f(net: &super::Net) {}\n");
    let beside = file(&folder, "net/beside.rs", "fn f() {}\n");
    let above = file(&folder, "net/above.rs", "mod below;\n");
    for (body, change, is_folded) in cases {
        let (from, to) = change.split_once(" @ ").unwrap_or_default();
        let path = file(&folder, "net.rs", &format!("{text}{body}").replacen(from, to, 1));
        let given = [&*path, &beside, &above];
        let report = printed(&["port", "--json", "--write"], &given);
        let written = read(&path);
        let is_left = report.contains("a batch norm stays");
        let found = [written.contains(".absorb_bn(&"), is_left];
        assert_eq!(found, [is_folded, !is_folded], "{change}: {report}\n{written}");
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

/// Norms, layers with computed weights, and layers with other names, in modules too.
#[test]
fn norms_and_constructors_are_known_in_modules() {
    let folder = folder();
    for squares in ["xs.sqr()?", "xs.powf(2.)?", "(xs * xs)?", "xs.mul(xs)?"] {
        let body = format!(
            "let s = {squares}.mean_keepdim(D::Minus1)?;\n\
             xs.broadcast_div(&(s + 1e-6)?.sqrt()?)?.broadcast_mul(&self.w)"
        );
        let constructor = "Ok(Self { w: vb.get(2 * n, \"w\")? })";
        let path = file(&folder, "a.rs", &model("w: Tensor", constructor, &body));
        assert_eq!(json(&["--write"], &path)["files"][0]["todo"], Value::Array(vec![]));
        let ported = read(&path);
        has(&ported, "ops::rms_norm(xs, &self.w, 1e-6)");
        has(&ported, "#[derive(Clone)]\n    pub struct Net");
        has(&ported, "#[quantizable(skip)]\n    net: inner::Net");
    }
    let cases = r#"
        let q = vb.get(n, "q")?; Linear::new(Tensor::cat(&[&(q * 0.5)?, k], 0)?, None) @ is computed
        let w = (vb.get((n, 4), "w")? * 2.)?; Linear::new(w, None) @ the weight of a `Linear` is computed
        Linear::new(vb.get((2 * n, 4), "w")?.t()?, None) @ -
        Linear::new(Tensor::zeros(n, d, c)?.affine(1., 2.)?, None) @ -
        vb.get((n, 4), &format!("weight_hh_l{i}"))? @ `weight_hh*` are an LSTM's or a GRU's
    "#;
    for [constructor, expected] in table(cases) {
        let path = file(&folder, "a.rs", &model("w: u8", constructor, "xs"));
        let todo = &json(&[], &path)["files"][0]["todo"];
        let what = todo[0]["what"].as_str().unwrap_or("-");
        assert!(what.contains(expected), "{constructor}: {todo}");
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
