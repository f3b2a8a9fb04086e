//! A table of vectors.

mod quantized;

use std::sync::Arc;

use candle_core::{DType, Result as CandleResult, Tensor};
use candle_nn::{Init, Module, VarBuilder};

use super::prefix::prefix_of;
use crate::error::{Error, Result};
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, LentWeight, WeightInfo};
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tap::{self, Replay, Tap};
use crate::tensor::{Elements, mismatch, readable, unrepeated};
use crate::trace;
use crate::weight::{
    Origin, QTable, QWeight, Quantized as Rows, StoredValue, StoredWeight, WeightCodes, find,
    origin,
};
use quantized::{QuantizedTable, read};

/// A table of vectors, looked up by index; call-compatible with [`candle_nn::Embedding`].
///
/// Quantized with [`QConfig::table`] or [`QConfig::float16`], it is
/// inference-only, runs on the CPU, and dequantizes only the rows that are looked up. If a
/// [`Linear`](super::Linear) holds the same tensor, as the output projection of a language model
/// often does, and both are quantized in one call, the table is kept once: the embedding reads the
/// projection's weight.
///
/// # Shapes
/// - embeddings: `[rows, hidden_size]`, f32, f16, bf16 or f64
/// - input: indexes `[..]` of any rank, u8, u32 or i64, contiguous or not
/// - output: `[.., hidden_size]` in the dtype of the embeddings, also when they are quantized
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec};
///
/// let table = Tensor::randn(0f32, 1., (1000, 64), &Device::Cpu)?;
/// let mut layer = nn::Embedding::new(table, 64);
/// let report = quantize_dynamic(&mut layer, &QConfigSpec::int8().embeddings())?;
/// assert_eq!((report.bytes_before(), report.bytes_after()), (256_000, 72_000));
/// let ys = layer.forward(&Tensor::new(&[[3u32, 999], [0, 3]], &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [2, 2, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    table: Table,
    hidden_size: usize,
    name: Option<Arc<str>>,
    /// The place of the table in the checkpoint that it was loaded from.
    origin: Option<Origin>,
    tap: Option<Tap>,
}

#[derive(Clone, Debug)]
enum Table {
    Float(Tensor),
    Quantized(Arc<QuantizedTable>),
}

impl Embedding {
    /// A layer of this table; its shape is checked when it is used or quantized. A tensor from a
    /// [`Checkpoint`](crate::Checkpoint) gives a quantized layer where the checkpoint has the table
    /// so.
    ///
    /// candle-transformers' `with_tracing::Embedding::new(rows, size, vb)` is [`embedding`] here.
    #[doc(alias = "embedding")]
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        let origin = origin::find(&embeddings);
        let quantized = origin.as_ref().and_then(|origin| {
            let rows = read(origin.table().ok()??).ok()?;
            let dtype = embeddings.dtype();
            Some(QuantizedTable::new(rows, dtype, Some(origin.clone())))
        });
        Self {
            origin,
            table: match quantized {
                None => Table::Float(embeddings),
                Some(quantized) => Table::Quantized(Arc::new(quantized)),
            },
            hidden_size,
            name: None,
            tap: None,
        }
    }

    /// A layer of this table, `[rows, hidden_size]`, under candle-transformers' name.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_dynquant::nn;
    ///
    /// let table = Tensor::zeros((10, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!(nn::Embedding::from_weights(table)?.hidden_size(), 4);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the table is not a matrix.
    pub fn from_weights(embeddings: Tensor) -> CandleResult<Self> {
        let &[_, hidden_size] = embeddings.dims() else {
            return Err(mismatch("embeddings", "[rows, hidden_size]", &embeddings).into());
        };
        Ok(Self::new(embeddings, hidden_size))
    }

    /// The table, `[rows, hidden_size]`.
    ///
    /// For a quantized layer this is the dequantized table, computed at the first call and kept:
    /// it takes as much memory as the float table did.
    pub fn embeddings(&self) -> &Tensor {
        match &self.table {
            Table::Float(table) => table,
            Table::Quantized(quantized) => quantized.dequantized(),
        }
    }

    /// The length of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// The codes of the table; `None` if it is float, float16 or bfloat16.
    pub fn codes(&self) -> Option<WeightCodes> {
        self.quantized()?.codes()
    }

    /// The quantized table; `None` if the table is float or an output projection's weight.
    #[doc(hidden)]
    pub fn qtable(&self) -> Option<&QTable> {
        match &self.quantized()?.rows {
            Rows::Table(table) => Some(table),
            Rows::Weight { .. } => None,
        }
    }

    /// [`forward`](Module::forward) with this crate's error.
    #[doc(hidden)]
    pub fn try_forward(&self, indexes: &Tensor) -> Result<Tensor> {
        let rows = self.select(indexes)?;
        tap::report(self.tap.as_ref(), &[indexes], &rows);
        Ok(rows)
    }

    fn select(&self, indexes: &Tensor) -> Result<Tensor> {
        let rows = self.rows()?;
        let shape = [indexes.dims(), &[self.hidden_size]].concat();
        let count = sizes::computed("embedding", &shape, indexes.elem_count())?;
        // A view of one index may show any number of rows without elements.
        let indexes = match count {
            0 => &unrepeated(indexes)?,
            _ => indexes,
        };
        let flat = readable(indexes)?.flatten_all()?.contiguous()?;
        let selected = match &self.table {
            Table::Float(table) => select_float(table, &flat, rows)?,
            Table::Quantized(quantized) => {
                quantized.select(&Elements::new(&flat).to_indexes("embedding", rows)?)?
            }
        };
        Ok(match count {
            0 => Tensor::zeros(shape, selected.dtype(), selected.device())?,
            _ => selected.reshape(shape)?,
        })
    }

    /// The weight of an output projection, if it was read from a checkpoint as one.
    pub(super) fn tied(&self) -> Option<&Arc<QWeight>> {
        match &self.quantized()?.rows {
            Rows::Weight { weight, multiplied, .. } => multiplied.then_some(weight),
            Rows::Table(_) => None,
        }
    }

    fn quantized(&self) -> Option<&Arc<QuantizedTable>> {
        match &self.table {
            Table::Quantized(quantized) => Some(quantized),
            Table::Float(_) => None,
        }
    }

    fn rows(&self) -> Result<usize> {
        let shape = match &self.table {
            Table::Float(table) => table.dims(),
            Table::Quantized(quantized) => &quantized.rows.shape(),
        };
        match shape {
            &[rows, size] if size == self.hidden_size => Ok(rows),
            got => Err(Error::shape("embeddings", format!("[rows, {}]", self.hidden_size), got)),
        }
    }
}

/// Selects rows by candle's operation, so that gradients flow.
fn select_float(table: &Tensor, indexes: &Tensor, rows: usize) -> Result<Tensor> {
    if indexes.device().is_cpu() {
        Elements::new(indexes).to_indexes("embedding", rows)?;
    }
    // candle reads the maximum index of a dtype, for u8 an ordinary index, as a row of zeros.
    let indexes = match indexes.dtype() {
        DType::U8 => &indexes.to_dtype(DType::U32)?,
        _ => indexes,
    };
    Ok(readable(table)?.contiguous()?.index_select(indexes, 0)?)
}

impl From<candle_nn::Embedding> for Embedding {
    fn from(embedding: candle_nn::Embedding) -> Self {
        Self::new(embedding.embeddings().clone(), embedding.hidden_size())
    }
}

impl Module for Embedding {
    fn forward(&self, indexes: &Tensor) -> CandleResult<Tensor> {
        trace::forward!("embedding", self.name.as_deref());
        let ys = self.try_forward(indexes);
        ys.map_err(|e| e.at(self.name.as_deref().unwrap_or("Embedding")).into())
    }
}

impl Layer for Embedding {
    fn kind(&self) -> LayerKind {
        LayerKind::Embedding
    }

    fn checkpoint_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        vec![WeightInfo {
            origin: self.origin.clone(),
            ..match &self.table {
                Table::Quantized(quantized) => quantized.info(),
                Table::Float(table) => WeightInfo::of_float("weight", table),
            }
        }]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let Table::Float(table) = &self.table else {
            let got = "one that is quantized already";
            return Err(Error::qconfig("a float table", got));
        };
        self.rows()?;
        let rows = match qconfig {
            QConfig::Groups(_) => {
                let weight = QWeight::from_float(table, None, qconfig)?;
                Rows::matrix(Arc::new(weight), false)
            }
            _ => Rows::Table(Arc::new(QTable::from_float(table, qconfig)?)),
        };
        let mut quantized = QuantizedTable::new(rows, table.dtype(), None);
        quantized.qconfig = Some(qconfig.clone());
        Ok(self.reading(Arc::new(quantized)))
    }

    fn lend(&self, _name: &str) -> Option<LentWeight> {
        Some(LentWeight::new(Arc::clone(self.quantized()?)))
    }

    fn stored(&self) -> Result<Vec<StoredWeight>> {
        let value = match &self.table {
            Table::Float(table) => StoredValue::Float { weight: table.clone(), folded: false },
            Table::Quantized(quantized) => StoredValue::Quantized(quantized.rows.clone()),
        };
        Ok(vec![StoredWeight::new("weight", value)])
    }

    fn weights(&self) -> Result<Vec<Tensor>> {
        Ok(vec![match &self.table {
            Table::Float(table) => table.clone(),
            Table::Quantized(quantized) => quantized.dequantize()?,
        }])
    }

    fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.tap = tap;
        true
    }

    fn replay(&self) -> Option<Replay> {
        let layer = self.clone();
        Some(Arc::new(move |inputs| match inputs {
            [indexes] => layer.select(indexes),
            _ => Err(tap::unlike("indexes", inputs)),
        }))
    }

    /// Takes the weight of a projection, whatever its qconfig, which both have then; or of another
    /// embedding that was quantized by this qconfig.
    fn quantize_sharing(&self, qconfig: &QConfig, lent: &LentWeight) -> Option<Self> {
        let Table::Float(table) = &self.table else {
            return None;
        };
        if let QConfig::Int8 { .. } = qconfig {
            return None;
        }
        let shape = [self.rows().ok()?, self.hidden_size];
        if let Some(weight) = lent.get::<QWeight>() {
            return (weight.shape() == shape).then(|| {
                let rows = Rows::matrix(weight, false);
                self.reading(Arc::new(QuantizedTable::new(rows, table.dtype(), None)))
            });
        }
        let other = lent.get::<QuantizedTable>()?;
        let alike = match &other.rows {
            Rows::Table(_) => other.qconfig.as_ref() == Some(qconfig),
            Rows::Weight { .. } => true,
        };
        (alike && other.rows.shape() == shape).then(|| self.reading(other))
    }
}

impl Embedding {
    fn reading(&self, quantized: Arc<QuantizedTable>) -> Self {
        Self { table: Table::Quantized(quantized), tap: None, ..self.clone() }
    }
}

layers! { Embedding }

/// Loads `weight`, `[in_size, out_size]`, from `vb`; candle-transformers'
/// `with_tracing::Embedding::new`.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder<'_>) -> CandleResult<Embedding> {
    let normal = Init::Randn { mean: 0., stdev: 1. };
    sizes::elements("weight", &[in_size, out_size])?;
    let shape = [in_size, out_size];
    let (table, origin) = match find(&vb, "weight") {
        None => {
            let table = vb.get_with_hints((in_size, out_size), "weight", normal)?;
            let origin = origin::find(&table);
            (Table::Float(table), origin)
        }
        Some(found) => {
            let origin = Some(found.origin(&shape));
            let table = QuantizedTable::new(found.read(&shape, read)?, vb.dtype(), origin.clone());
            (Table::Quantized(Arc::new(table)), origin)
        }
    };
    Ok(Embedding { table, hidden_size: out_size, name: prefix_of(&vb), origin, tap: None })
}
