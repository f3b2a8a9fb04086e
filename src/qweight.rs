//! A quantized weight: codes, scales, and the packed form that is multiplied.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::kernels::{Isa, Packed};
pub(crate) use crate::observer::check_cpu_float;
use crate::observer::{ObserverConfig, ZeroPoints};
use crate::qconfig::WeightConfig;
use crate::qparams::{QDType, QScheme};

/// int8 codes of a weight `[out_features, in_features]` with their scales.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{QConfig, QWeight};
///
/// let weight = Tensor::new(&[[0.5f32, -1.0], [0.02, 0.01]], &Device::Cpu)?;
/// let qweight = QWeight::from_float(&weight, None, &QConfig::per_row_dynamic().weight)?;
/// assert_eq!(qweight.codes(), [64, -127, 127, 64]);
/// assert_eq!(qweight.scales().len(), 2); // one per output channel
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Debug)]
pub struct QWeight {
    packed: Packed,
    qscheme: QScheme,
}

impl QWeight {
    /// Quantizes a float weight, once; `bias`, `[out_features]`, stays f32.
    ///
    /// Scales are the observer's, of the whole weight or of each output channel.
    ///
    /// # Errors
    /// When a shape or dtype is wrong, a tensor is not on the CPU, an element is NaN or
    /// infinite, `DYNQUANT_ISA` is wrong, or a channel could overflow its accumulator.
    pub fn from_float(
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &WeightConfig,
    ) -> Result<Self> {
        let config = supported(config)?;
        let mut observer = config.build()?;
        let isa = Isa::active()?;
        let &[n, k] = weight.dims() else {
            return Err(Error::ShapeMismatch {
                op: "quantize weight",
                expected: "[out_features, in_features]".into(),
                got: weight.dims().to_vec(),
            });
        };
        if let Some(bias) = bias.filter(|bias| bias.dims() != [n]) {
            return Err(Error::ShapeMismatch {
                op: "quantize bias",
                expected: format!("[{n}]"),
                got: bias.dims().to_vec(),
            });
        }
        let bias = match bias {
            Some(bias) => to_f32_vec(bias, "quantize bias")?,
            None => vec![0.; n],
        };
        let values = to_f32_vec(weight, "quantize weight")?;
        // Whatever a user's own observer lets pass.
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::NonFiniteWeight {
                index: vec![at / k, at % k],
                value: values[at],
            });
        }
        observer.observe(weight)?;
        let qparams = observer.calculate_qparams()?;
        let scales = match (qparams.scales(), qparams.zero_points()) {
            _ if qparams.dtype() != config.dtype => return Err(unsupported(config)),
            (_, ZeroPoints::Int(zeros)) if zeros.iter().any(|zero| *zero != 0) => {
                return Err(unsupported(config));
            }
            (&[scale], ZeroPoints::Int(_)) => vec![scale; n],
            (scales, ZeroPoints::Int(_)) if scales.len() == n => scales.to_vec(),
            _ => return Err(unsupported(config)),
        };
        let mut codes = Vec::with_capacity(n * k);
        for index in 0..n {
            let channel = qparams.quantize(index, &values[index * k..][..k]);
            codes.extend(channel.into_iter().map(|code| code as i8));
            let bound = codes[index * k..]
                .iter()
                .map(|c| i64::from(c.unsigned_abs()));
            let bound = 255 * bound.sum::<i64>();
            if bound > i32::MAX.into() {
                return Err(Error::AccumulatorOverflow {
                    channel: index,
                    got: bound,
                });
            }
        }
        Ok(Self {
            packed: Packed::new(isa, k, &codes, &scales, &bias),
            qscheme: config.qscheme,
        })
    }

    /// `out_features` and `in_features`.
    pub fn shape(&self) -> [usize; 2] {
        [self.packed.n(), self.packed.k()]
    }

    /// Over how much of the weight one scale stretches.
    pub fn qscheme(&self) -> QScheme {
        self.qscheme
    }

    /// The codes in row order, `[out_features, in_features]`.
    pub fn codes(&self) -> Vec<i8> {
        self.packed.unpack()
    }

    /// The scale of the weight, or of each output channel.
    pub fn scales(&self) -> &[f32] {
        let scales = self.packed.scales();
        match self.qscheme.is_per_channel() {
            false => &scales[..scales.len().min(1)],
            true => scales,
        }
    }

    /// The instruction set it is packed for.
    pub fn isa(&self) -> Isa {
        self.packed.isa()
    }

    /// Bytes in memory, scales and padding included.
    pub fn bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// The f32 weight that the codes stand for, `[out_features, in_features]`.
    ///
    /// # Errors
    /// When candle cannot make the tensor.
    pub fn dequantize(&self) -> Result<Tensor> {
        let [n, k] = self.shape();
        let codes = self.codes();
        let rows = codes.chunks(k.max(1)).zip(self.packed.scales());
        let values = rows.flat_map(|(row, scale)| row.iter().map(move |c| f32::from(*c) * scale));
        Ok(Tensor::from_vec(values.collect(), (n, k), &Device::Cpu)?)
    }

    pub(crate) fn packed(&self) -> &Packed {
        &self.packed
    }
}

/// The observer of a configuration, if its weights can be made.
fn supported(config: &WeightConfig) -> Result<&ObserverConfig> {
    match config {
        WeightConfig::Int8(config)
            if config.dtype == QDType::QInt8
                && config.qscheme.is_symmetric()
                && config.ch_axis == 0 =>
        {
            Ok(config)
        }
        WeightConfig::Int8(config) => Err(unsupported(config)),
        WeightConfig::Float16 => Err(Error::UnsupportedQConfig {
            expected: "qint8, symmetric, channels along axis 0".into(),
            got: config.to_string(),
        }),
    }
}

fn unsupported(config: &ObserverConfig) -> Error {
    Error::UnsupportedQConfig {
        expected: "qint8, symmetric, channels along axis 0".into(),
        got: format!("{config:?}"),
    }
}

/// The elements of a float tensor on the CPU, as f32.
fn to_f32_vec(tensor: &Tensor, op: &'static str) -> Result<Vec<f32>> {
    check_cpu_float(tensor, op)?;
    let tensor = tensor.to_dtype(DType::F32)?.flatten_all()?;
    Ok(tensor.to_vec1()?)
}
