use candle::{Result, Tensor};
use candle_dynquant::nn::{embedding, linear_no_bias, Embedding as Traced, Embedding, Linear};
use candle_dynquant::{nn, Quantizable};
use candle_nn::VarBuilder;
use std::sync::Arc;

#[derive(Clone, Quantizable)]
pub struct Llama {
    wte: Embedding,
    lm_head: Linear,
}

impl Llama {
    pub fn load(tied: bool, vb: VarBuilder) -> Result<Self> {
        let wte = embedding(10, 4, vb.pp("model.embed_tokens"))?;
        let lm_head = if tied {
            Linear::tied(&wte, None)
        } else {
            linear_no_bias(4, 10, vb.pp("lm_head"))?
        };
        Ok(Self { wte, lm_head })
    }
}

#[derive(Clone, Quantizable)]
pub struct Model {
    embed_tokens: nn::Embedding,
    shared: Traced,
}

impl Model {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            embed_tokens: nn::embedding(10, 4, vb.pp("embed_tokens"))?,
            shared: embedding(10, 4, vb.pp("shared"))?,
        })
    }

    fn of(embed_tokens: Embedding, shared: Traced) -> Model {
        Self {
            embed_tokens,
            shared,
        }
    }
}

/// The table is in a field of another type.
#[derive(Clone, Quantizable)]
pub struct CausalLm {
    base: Model,
    lm_head: Linear,
    second: nn::Linear,
}

impl CausalLm {
    pub fn new(bias: Option<Tensor>, vb: VarBuilder) -> Result<Self> {
        let base = Model::new(vb.pp("model"))?;
        let lm_head = Linear::tied(&base.embed_tokens, None);
        let second = nn::Linear::tied(
            // Of both.
            &base.shared,
            bias.clone(),
        );
        Ok(Self {
            base,
            lm_head,
            second,
        })
    }

    pub fn head(&self) -> nn::Linear {
        nn::Linear::tied(&self.base.embed_tokens, None)
    }

    pub fn of(table: &Model, embed: Embedding) -> Self {
        let lm_head = Linear::tied(&table.embed_tokens, None);
        let base = Model::of(embed, table.shared.clone());
        let second = nn::Linear::tied(&base.shared, None);
        Self {
            base,
            lm_head,
            second,
        }
    }
}

pub fn borrowed(embed: &Embedding, own: Option<nn::Linear>) -> nn::Linear {
    own.unwrap_or_else(|| nn::Linear::tied(embed, None))
}

pub fn variables(vb: VarBuilder) -> anyhow::Result<[nn::Linear; 2]> {
    let words = embedding(10, 4, vb.pp("words")).map_err(anyhow::Error::from)?;
    let table = Embedding::new(vb.get((10, 4), "table")?, 4);
    Ok([
        nn::Linear::tied(&words, None),
        nn::Linear::tied(&table, None),
    ])
}

/// Of a table that others hold, too.
#[derive(Clone, Quantizable)]
pub struct Shared {
    shared: Arc<Embedding>,
    head: nn::Linear,
}

impl Shared {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let shared = embedding(10, 4, vb.pp("shared"))?;
        let shared = Arc::new(shared);
        let head = nn::Linear::tied(&shared, None);
        Ok(Self { shared, head })
    }

    pub fn of(shared: &Arc<Embedding>) -> Self {
        Self {
            head: nn::Linear::tied(shared, None),
            shared: shared.clone(),
        }
    }
}

/// What makes its table is not seen here; its field says what it is.
#[derive(Clone, Quantizable)]
pub struct Given {
    embed: Embedding,
    head: nn::Linear,
}

impl Given {
    pub fn load(load: impl FnOnce() -> Result<Embedding>) -> Result<Self> {
        let embed = load()?;
        let head = nn::Linear::tied(&embed, None);
        Ok(Self { embed, head })
    }
}

/// A table of the file's own, which is no layer of the library.
#[derive(Clone)]
pub struct Lookup(Tensor);

impl Lookup {
    fn embeddings(&self) -> &Tensor {
        &self.0
    }
}

/// Heads that stay: their tables are no embeddings of the library for certain.
#[derive(Clone, Quantizable)]
pub struct Left {
    lookup: Lookup,
    bias: Option<Tensor>,
    // dynquant: keep
    kept: candle_nn::Embedding,
    heads: Vec<nn::Linear>,
}

impl Left {
    pub fn add(&mut self, tables: &[Embedding], vb: VarBuilder) -> Result<()> {
        let load = || embedding(10, 4, vb.pp("table"));
        let lookup = self.lookup.clone();
        self.heads.push(nn::Linear::new(self.lookup.embeddings().clone(), None));
        self.heads.push(nn::Linear::new(lookup.embeddings().clone(), None));
        self.heads.push(nn::Linear::new(self.kept.embeddings().clone(), None));
        self.heads.push(nn::Linear::new(tables[0].embeddings().clone(), None));
        for one in tables {
            self.heads.push(nn::Linear::new(one.embeddings().clone(), None));
        }
        let table = load()?;
        self.heads.push(nn::Linear::new(table.embeddings().clone(), None));
        let words = embedding(10, 4, vb.pp("words"))?;
        // dynquant: keep
        let _own = Linear::from_weights(words.embeddings().clone(), None);
        self.heads.push(nn::Linear::new(
            words
                .embeddings() // the table
                .clone(),
            None,
        ));
        Ok(())
    }
}

/// The variable that is read is the last of its name; that of a pattern is not known.
pub fn shadowed(lookup: &Lookup, vb: VarBuilder) -> Result<Vec<nn::Linear>> {
    let table = embedding(10, 4, vb.pp("words"))?;
    let mut heads = vec![];
    heads.push(nn::Linear::new(table.embeddings().clone(), None));
    if let Some(table) = Some(lookup) {
        heads.push(nn::Linear::new(table.embeddings().clone(), None));
    }
    Ok(heads)
}

pub fn again(lookup: &Lookup, vb: VarBuilder) -> Result<[nn::Linear; 2]> {
    let words = embedding(10, 4, vb.pp("words"))?;
    let first = nn::Linear::tied(&words, None);
    let words = lookup.clone();
    Ok([first, nn::Linear::new(words.embeddings().clone(), None)])
}

#[derive(Clone, Quantizable)]
pub struct Taken {
    embed: Embedding,
    bias: Option<Tensor>,
}

/// The embedding cannot be borrowed there.
impl Taken {
    fn bias(&mut self) -> Option<Tensor> {
        self.bias.take()
    }

    pub fn head(&mut self) -> nn::Linear {
        nn::Linear::new(self.embed.embeddings().clone(), self.bias())
    }
}
