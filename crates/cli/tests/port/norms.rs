//! Norms: folded into a convolution, one call, or left.

use serde_json::Value;

use super::common::{file, folder, has, printed, read};
use super::{compare, json, model, table};

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
        Self { conv, bn, n }
            @ Self { n, conv: conv1d(n, n, 3, c, vb.pp("c"))?, bn: batch_norm(n, 1e-5, vb)? }
            @ folded
        xs.apply(&self.conv)? @ self.conv.forward(xs)? @ folded
        xs.apply(&self.conv)? @ let ys = xs.apply(&self.conv)?; ys @ folded
        bn: BatchNorm @ pub bn: BatchNorm @ left
        bn: BatchNorm @ #[cfg(feature = "bn")] bn: BatchNorm @ left
        xs.apply( @ self.bn.eps(); xs.apply( @ left
        xs.apply( @ self.conv.weight(); xs.apply( @ left
        xs.apply( @ println!("{:?}", self.bn); xs.apply( @ left
        xs.apply( @ let Self { bn, .. } = self; xs.apply( @ left
        xs.apply( @ |other: &Self| other.bn.eps(); xs.apply( @ left
        Self { conv, bn, n } @ if n > 4 { Self { conv, bn, n } } else { Self { n, conv, bn } }
            @ left
        Self { conv, bn, n } @ (|| Self { conv, bn, n })() @ left
        Self { conv, bn, n } @ Self { conv: if n > 4 { conv } else { conv1d(vb)? }, bn, n } @ left
        Self { conv, bn, n } @ Self { bn: batch_norm(n, 1e-5, vb)?, conv, n } @ left
        xs.apply( @ self.bn.forward_t(&self.conv.forward(xs)?, false)?; xs.apply( @ left
        , false) @ , self.n > 0) @ stays
        xs.apply(&self.conv)? @ let ys = xs.apply(&self.conv)?; ys.relu()?; ys @ stays
        xs.apply(&self.conv)? @ let ys = xs.apply(&self.conv)?;
            if self.n > 0 { return ys.apply_t(&self.bn, false) } xs @ stays
        xs.apply(&self.conv)? @ xs.apply(&self.conv)?.relu()? @ stays
    "#;
    for [from, to, expected] in &table(cases) {
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

/// Norms in variables and in closures, beside other uses of the norm or of the convolution.
#[test]
fn norms_in_variables_are_folded_where_that_is_certain() {
    let text = "
use candle::{Module, ModuleT, Result, Tensor};
use candle_nn::{batch_norm, conv2d_no_bias, Conv2d, Func, VarBuilder};

fn conv2d(vb: VarBuilder) -> Result<Conv2d> {
    conv2d_no_bias(64, 64, 3, Default::default(), vb)
}

struct Net;

impl Net {
    fn f(xs: &Tensor, train: bool, given: Conv2d, vb: VarBuilder) -> Result<Func> {
        BODY
    }
}
";
    let cases = r#"
        CN let ys = xs.apply(&conv)?; let zs = bn.forward_t(&ys, false)?.relu()?;
            CN zs.apply(&conv)?.apply_t(&bn, false) @ CN FOLD let ys = xs.apply(&conv)?;
            let zs = ys.relu()?; CN FOLD zs.apply(&conv)
        CN FUNC xs.apply(&conv)?.apply_t(&bn, false)?.relu()))
            @ CN FOLD HOLD xs.apply(conv)?.relu()))
        CN FUNC bn.forward_t(&conv.forward(&xs)?, false))) @ CN FOLD HOLD conv.forward(&xs)))
        CN FUNC xs.apply(&conv)?.apply_t(&bn, train)))
            @ CN HOLD xs.apply(conv)?.apply_t(&bn, train)))
        CN FUNC xs.apply(&conv)?.relu()?.apply_t(&bn, false)))
            @ CN HOLD xs.apply(conv)?.relu()?.apply_t(&bn, false)))
        CN let ys = xs.apply(&conv)?; let zs = bn.forward_t(&ys, false)?; zs + ys @ stays
        CN let ys = xs.apply(&conv)?;
            if train { bn.forward_t(&ys, false) } else { Ok(xs.clone()) } @ stays
        CN xs.apply(&conv)?.apply_t(&bn, false)?.apply_t(&bn, false) @ left
        CN println!("{:?}", conv.weight()); xs.apply(&conv)?.apply_t(&bn, false) @ left
        CN xs.apply(&given)?.apply_t(&bn, false) @ left
        CN LINE // dynquant: keep LINE xs.apply(&conv)?.apply_t(&bn, false) @ stays
    "#;
    let note = "a batch norm stays: it or the convolution before it has other uses";
    for row in table::<2>(cases) {
        let [body, expected] = row.map(|text| {
            let both = "let conv = conv2d(vb.pp(0))?; let bn = batch_norm(64, 1e-5, vb.pp(1))?;";
            let text = text.replace("CN", both).replace("FOLD", "let conv = conv.absorb_bn(&bn)?;");
            let text = text.replace("HOLD", "Ok(Func::holding(conv, move |conv, xs|");
            text.replace("FUNC", "Ok(Func::new(move |xs|").replace("LINE", "\n")
        });
        compare(text, &body, &expected, note);
    }
}

/// A norm that is loaded behind the call of the convolution, and wrappers that call it twice, with
/// something behind it, or for some inputs only.
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
    let wrapper = "struct Wrapper {\n    inner: Conv1d,\n}\n\n\
                   impl Module for Wrapper {\n    \
                   fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        BODY\n    }\n}\n\n\
                   struct Net {\n    conv: Wrapper,\n    bn: BatchNorm,\n}\n\n\
                   impl Net {\n    fn new(conv: Wrapper, bn: BatchNorm) -> Result<Self> {\n        \
                   Ok(Self { conv, bn })\n    }\n\n    \
                   fn forward(&self, xs: &Tensor) -> Result<Tensor> {\n        \
                   let ys = self.conv.forward(xs)?;\n        self.bn.forward_t(&ys, false)\n    }\n}\n";
    let wrappers = [
        "let xs = self.inner.forward(xs)?.relu()?; self.inner.forward(&xs)",
        "self.inner.forward(xs)?.relu()",
        "if xs.dim(1)? == 64 { return Ok(xs.clone()); } self.inner.forward(xs)",
    ];
    let wrappers = wrappers.map(|body| wrapper.replace("BODY", body));
    for text in wrappers.iter().map(String::as_str).chain([late]) {
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
        let w = (vb.get((n, 4), "w")? * 2.)?; Linear::new(w, None)
            @ the weight of a `Linear` is computed
        Linear::new(vb.get((2 * n, 4), "w")?.t()?, None) @ -
        Linear::new(Tensor::zeros(n, d, c)?.affine(1., 2.)?, None) @ -
        vb.get((n, 4), &format!("weight_hh_l{i}"))? @ `weight_hh*` are an LSTM's or a GRU's
    "#;
    for [constructor, expected] in &table(cases) {
        let path = file(&folder, "a.rs", &model("w: u8", constructor, "xs"));
        let todo = &json(&[], &path)["files"][0]["todo"];
        let what = todo[0]["what"].as_str().unwrap_or("-");
        assert!(what.contains(expected), "{constructor}: {todo}");
    }
}

/// Norms that are written out become one call where that is certain.
#[test]
fn norms_in_other_forms_are_one_call() {
    let text = "
use candle::{DType, Result, Tensor, D};
use candle_nn::{Linear, VarBuilder};

pub struct Norm {
    weight: Tensor,
    bias: Tensor,
    planes: Tensor,
    given: Tensor,
    eps: f64,
}

impl Norm {
    fn load(size: usize, given: Tensor, vb: VarBuilder) -> Result<Self> {
        let weight = vb.get(size, WEIGHT).or_else(|_| vb.get(size, GAMMA))?;
        let (bias, planes) = (vb.get(size, BIAS)?, vb.get(size, PLANES)?.unsqueeze(0)?);
        Ok(Self { weight, bias, planes, given, eps: 1e-12 })
    }

    fn f(&self, xs: &Tensor, residual: KIND, size: usize) -> Result<Tensor> {
        BODY
    }
}
";
    let check = |kind: &str, body: &str, expected: &str| {
        let body = body.replace("SQUARES", "let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;");
        let body = body.replace("DIVIDED", "xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?");
        compare(&text.replace("KIND", kind), &body, expected, "");
    };
    let add = "match residual { \
               Some(residual) => ops::add_layer_norm(xs, residual, &self.weight, BIAS, self.eps), \
               None => ops::layer_norm(xs, &self.weight, BIAS, self.eps), }";
    // A residual that may be there, and a dtype to compute in.
    let body = "let mut xs = xs.clone(); if let Some(residual) = residual { xs = xs.add(residual)?; } \
                let dtype = xs.dtype(); let internal = match dtype { \
                DType::F16 | DType::BF16 => DType::F32, dtype => dtype, }; \
                let size = xs.dim(D::Minus1)?; let xs = xs.to_dtype(internal)?; \
                let mean = (xs.sum_keepdim(D::Minus1)? / size as f64)?; \
                let xs = xs.broadcast_sub(&mean)?; \
                let squares = (xs.sqr()?.sum_keepdim(D::Minus1)? / size as f64)?; \
                let normed = DIVIDED; let xs = normed.to_dtype(dtype)?.broadcast_mul(&self.weight)?; \
                xs.broadcast_add(&self.bias)";
    check("Option<&Tensor>", body, &add.replace("BIAS", "&self.bias"));
    // The same in a match.
    let body = "let xs = match residual { None => xs.clone(), Some(residual) => xs.add(residual)?, }; \
                let xs = xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?; SQUARES let xs = DIVIDED; \
                xs.broadcast_mul(&self.weight)";
    check("&Option<Tensor>", body, &add.replace("BIAS", "None"));
    // The name of the residual hides the rows.
    let add = "let mut ys = xs.clone(); if let Some(xs) = residual { ys = ys.add(xs)?; }";
    let body = format!(
        "{add} let xs = ys.broadcast_sub(&ys.mean_keepdim(D::Minus1)?)?; SQUARES \
         let xs = DIVIDED; xs.broadcast_mul(&self.weight)"
    );
    check(
        "Option<&Tensor>",
        &body,
        &format!("{add} ops::layer_norm(&ys, &self.weight, None, self.eps)"),
    );
    let kept = "// dynquant: keep\nSQUARES let xs = DIVIDED; xs.broadcast_mul(&self.weight)";
    check("&Tensor", kept, "stays");
    // A weight about zero, and a comment.
    let body = "let dtype = xs.dtype();\nlet xs = xs.to_dtype(DType::F32)?; SQUARES \
                let xs = DIVIDED;\nOk((\nxs.to_dtype(dtype)?\n// What is added to one.\n\
                .broadcast_mul(&(&self.weight + 1.0)?)?.contiguous()?, dtype))";
    let expected = "let dtype = xs.dtype(); Ok((\n// What is added to one.\n\
                    ops::rms_norm(xs, &(&self.weight + 1.0)?, self.eps)?, dtype))";
    check("&Tensor", body, expected);
    // A condition on a dtype, one expression; another dimension, another
    // size, and no weight; weights of other ranks, or of any; a result that stays in f32; what is
    // computed on the way, or the rows, are read or changed.
    let cases = "
        let dtype = xs.dtype(); let is_narrow = dtype != DType::F32;
            let wide = if is_narrow { xs.to_dtype(DType::F32)? } else { xs.clone() };
            let centered = wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?;
            let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
            let factor = (variance + 1e-5)?.sqrt()?.recip()?;
            let normed = centered.broadcast_mul(&factor)?;
            let normed = if is_narrow { normed.to_dtype(dtype)? } else { normed };
            normed.broadcast_mul(&self.weight.to_dtype(dtype)?)
            @ ops::layer_norm(xs, &self.weight, None, 1e-5)
        let ys = xs.broadcast_div(&(xs.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()?)?
            .broadcast_mul(&self.weight)?; let xs = (xs + &ys)?; xs.broadcast_add(&self.bias)
            @ let ys = ops::rms_norm(xs, &self.weight, self.eps)?; let xs = (xs + &ys)?;
            xs.broadcast_add(&self.bias)
        let squares = xs.sqr()?.mean_keepdim(1)?; let xs = DIVIDED;
            xs.broadcast_mul(&self.weight) @ stays
        let squares = (xs.sqr()?.sum_keepdim(D::Minus1)? / size as f64)?; let xs = DIVIDED;
            xs.broadcast_mul(&self.weight) @ stays
        SQUARES DIVIDED.exp() @ stays
        SQUARES let xs = DIVIDED; xs.broadcast_mul(residual) @ stays
        SQUARES let xs = DIVIDED; xs.broadcast_mul(&self.planes) @ stays
        SQUARES let xs = DIVIDED; xs.broadcast_mul(&self.given) @ stays
        let xs = xs.to_dtype(DType::F32)?; SQUARES let xs = DIVIDED;
            xs.broadcast_mul(&self.weight) @ stays
        SQUARES let ys = xs.broadcast_div(&(&squares + self.eps)?.sqrt()?)?;
            ys.broadcast_mul(&self.weight)? + squares @ stays
        let mut xs = xs.clone(); SQUARES xs = (xs + residual)?; let xs = DIVIDED;
            xs.broadcast_mul(&self.weight) @ stays
    ";
    for [body, expected] in &table(cases) {
        check("&Tensor", body, expected);
    }
}
