//! Heads of the weight of an embedding: which become tied, and which stay.

use super::{compare, table};

/// A method of a type with embeddings of several kinds. A body is put in the place of `BODY`.
const METHOD: &str = r#"
use crate::models::with_tracing::{linear_no_bias, Embedding as Traced, Linear};
use candle::{Result, Tensor};
use candle_nn::{embedding, Embedding, VarBuilder};
use std::sync::Arc;

/// A table of the file's own, which is no layer of the library.
#[derive(Clone)]
pub struct Lookup(Tensor);

impl Lookup {
    fn embeddings(&self) -> &Tensor {
        &self.0
    }
}

pub struct Base {
    embed: candle_nn::Embedding,
    shared: Traced,
}

impl Base {
    fn new(embed: candle_nn::Embedding, shared: Traced) -> Result<Self> {
        Ok(Self { embed, shared })
    }

    fn with(embed: candle_nn::Embedding, shared: Traced) -> Base {
        Base { embed, shared }
    }
}

pub struct Model {
    base: Base,
    lookup: Lookup,
    bias: Option<Tensor>,
    // dynquant: keep
    kept: candle_nn::Embedding,
    lm_head: Linear,
}

impl Model {
    fn bias(&mut self) -> Option<Tensor> {
        self.bias.take()
    }

    fn f(&mut self, given: &Embedding, arc: &Arc<Embedding>, table: &Base, tables: &[Embedding],
         own: Option<candle_nn::Linear>, load: impl FnOnce() -> Result<Embedding>, vb: VarBuilder)
         -> Result<candle_nn::Linear> {
        BODY
    }
}
"#;

/// `NEW(x)` is a head of the weight of `x`, which stays, and `TIED(x)` a tied one.
#[test]
fn heads_of_embeddings_are_tied_where_that_is_certain() {
    let cases = r#"
        NEW(self.base.embed) @ TIED(&self.base.embed)
        NEW(self.base.shared) @ TIED(&self.base.shared)
        NEW(table.embed) @ TIED(&table.embed)
        let x = Base::new(e, s)?; NEW(x.embed) @ let x = Base::new(e, s)?; TIED(&x.embed)
        let x = Base::with(e, s); NEW(x.embed) @ let x = Base::with(e, s); TIED(&x.embed)
        NEW(given) @ TIED(given)
        NEW(arc) @ TIED(arc)
        candle_nn::linear::Linear::new(given.embeddings().clone(), None) @ TIED(given)
        Linear::from_weights(given.embeddings().clone(), None) @ Linear::tied(given, None)
        candle_nn::Linear::new(given.embeddings().clone(), self.bias.clone())
            @ nn::Linear::tied(given, self.bias.clone())
        own.unwrap_or_else(|| NEW(given)) @ own.unwrap_or_else(|| TIED(given))
        LOAD?; if own.is_some() { NEW(x) } else { linear_no_bias(4, 10, vb)? }
            @ LOAD?; if own.is_some() { TIED(&x) } else { linear_no_bias(4, 10, vb)? }
        LOAD.map_err(anyhow::Error::from)?; NEW(x) @ LOAD.map_err(anyhow::Error::from)?; TIED(&x)
        LOAD?; let y = Arc::new(x); NEW(y) @ LOAD?; let y = Arc::new(x); TIED(&y)
        let x = Embedding::new(vb.get((10, 4), "t")?, 4); NEW(x) @ TIED(&x)
        let x = Traced::new(10, 4, vb.pp("t"))?; NEW(x)
            @ let x = embedding(10, 4, vb.pp("t"))?; TIED(&x)
        NEW(self.lookup) @ NEW(self.lookup)
        let x = self.lookup.clone(); NEW(x) @ NEW(x)
        NEW(self.kept) @ NEW(self.kept)
        NEW(tables[0]) @ NEW(tables[0])
        for one in tables { heads.push(NEW(one)); } own
            @ for one in tables { heads.push(NEW(one)); } own
        let load = || embedding(10, 4, vb.pp("t")); let x = load()?; NEW(x)
            @ let x = load()?; NEW(x)
        LOAD?; heads.push(NEW(x)); if let Some(x) = Some(lookup) { return NEW(x); } own
            @ heads.push(NEW(x)); if let Some(x) = Some(lookup) { return NEW(x); } own
        LOAD?; let first = NEW(x); let x = self.lookup.clone(); NEW(x)
            @ LOAD?; let first = TIED(&x); let x = self.lookup.clone(); NEW(x)
        candle_nn::Linear::new(self.base.embed.embeddings().clone(), self.bias())
            @ nn::Linear::new(self.base.embed.embeddings().clone(), self.bias())
    "#;
    for [body, expected] in &table(cases) {
        check(body, expected);
    }
    // What makes the table is not seen; the field says what it is.
    let body = "let embed = load()?; let head = NEW(embed); Ok(Base { embed, shared: head })";
    check(body, "let embed = load()?; let head = TIED(&embed); Ok(Base { embed, shared: head })");
    // A comment that the call has no place for, one that it has, and one of the author.
    let call = "candle_nn::Linear::new(\ngiven\n.embeddings() // the table\n.clone(), None)";
    check(call, &call.replace("candle_nn", "nn"));
    let call = "candle_nn::Linear::new(\n// Of both.\ngiven.embeddings().clone(), None)";
    check(call, "nn::Linear::tied(\n// Of both.\ngiven, None)");
    let kept = "// dynquant: keep\nLinear::from_weights(given.embeddings().clone(), None)";
    check(kept, kept);
}

fn check(body: &str, expected: &str) {
    let load = "let x = embedding(10, 4, vb.pp(\"t\"))";
    let [body, expected] = [(body, "candle_nn"), (expected, "nn")].map(|(text, path)| {
        let text = each(&text.replace("LOAD", load), "NEW(", |of| {
            format!("{path}::Linear::new({of}.embeddings().clone(), None)")
        });
        each(&text, "TIED(", |of| format!("nn::Linear::tied({of}, None)"))
    });
    compare(METHOD, &body, &expected, "");
}

/// The text with the arguments of each call in another form.
fn each(text: &str, call: &str, form: impl Fn(&str) -> String) -> String {
    let mut parts = text.split(call);
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| {
        let (of, rest) = part.split_once(')').unwrap();
        text + &form(of) + rest
    })
}
