//! The convolution that the layers share.

use std::sync::Arc;

use candle_core::{DType, Result as CandleResult, Tensor};
use candle_nn::{BatchNorm, Init, VarBuilder, init};

use super::batch_norm::{self, finite};
use super::geometry::{Geometry, QuantizedTaps};
use crate::error::{Error, Result};
use crate::kernels::{self, FusedActivation};
use crate::module::WeightInfo;
use crate::nn::prefix::prefix_of;
use crate::nn::projection::weight_info;
use crate::ops;
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tap::{self, Replay, Tap};
use crate::tensor::{
    Elements, as_f32, bits, check_float, from_f32_vec, mismatch, to_f32_vec, without_gradient,
};
use crate::weight::{
    Origin, QWeight, Quantized, QuantizedEntry, StoredValue, StoredWeight, find, origin,
};

/// A convolution of any rank: the part that the layers share.
#[derive(Clone, Debug)]
pub struct AnyConvolution {
    weight: ConvolutionWeight,
    pub bias: Option<Tensor>,
    /// Spatial dimensions: 1 of signals, 2 of images.
    rank: usize,
    geometry: Geometry,
    pub activation: Option<FusedActivation>,
    origin: Option<Origin>,
    pub name: Option<Arc<str>>,
    /// Whether the weight may be in no checkpoint.
    is_computed: bool,
    /// Whether it was scaled, so that its weight differs from its checkpoint's.
    folded: bool,
    norm: Option<Arc<FoldedNorm>>,
    pub tap: Option<Tap>,
}

/// A batch norm that is folded in, as two vectors in f64, and the convolution without it, which is
/// quantized and saved.
#[derive(Debug)]
struct FoldedNorm {
    scale: Tensor,
    shift: Tensor,
    /// The weight; of a quantized one, whose codes stay, the scales of its rows.
    weight: Tensor,
    bias: Option<Tensor>,
    before: Option<Arc<Self>>,
}

#[derive(Clone, Debug)]
enum ConvolutionWeight {
    Float(Tensor),
    Quantized(Arc<QuantizedTaps>),
}

impl AnyConvolution {
    /// A layer of a weight that a checkpoint may have quantized.
    pub fn new(weight: Tensor, bias: Option<Tensor>, rank: usize, geometry: Geometry) -> Self {
        let dims = weight.dims().to_vec();
        let is_weight = dims.len() == rank + 2;
        let origin = (is_weight.then(|| geometry.taps(&dims)))
            .and_then(|taps| origin::of_convolution(&weight, &taps));
        let quantized = origin.as_ref().and_then(|origin| {
            let (gates, of_taps) = geometry.gates(bias.as_ref(), &dims).ok()?;
            // Of another kind or of groups, the layer keeps the floats.
            let quantized = origin.whole().ok()?.qweight(gates, of_taps.as_ref()).ok()?;
            Some(QuantizedTaps::new(quantized, dims, geometry))
        });
        // Its weight may have been changed in place.
        let is_like = |taps: &QuantizedTaps| {
            let value = taps.value()?.to_dtype(weight.dtype())?;
            Ok::<_, Error>(bits(&value)? == bits(&weight)?)
        };
        let (quantized, origin) = match quantized {
            Some(taps) if !is_like(&taps).unwrap_or(false) => (None, None),
            unchanged => (unchanged, origin),
        };
        let weight = match quantized {
            Some(quantized) => ConvolutionWeight::Quantized(Arc::new(quantized)),
            None => ConvolutionWeight::Float(weight),
        };
        Self::from_parts(weight, bias, rank, geometry, origin)
    }

    fn from_parts(
        weight: ConvolutionWeight,
        bias: Option<Tensor>,
        rank: usize,
        geometry: Geometry,
        origin: Option<Origin>,
    ) -> Self {
        Self {
            weight,
            bias,
            rank,
            geometry,
            activation: None,
            origin,
            name: None,
            is_computed: false,
            folded: false,
            norm: None,
            tap: None,
        }
    }

    /// A layer of a computed weight, which a checkpoint may have quantized.
    pub fn computed(
        weight: Tensor,
        bias: Option<Tensor>,
        rank: usize,
        geometry: Geometry,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let name = prefix_of(vb);
        let found = find(vb, "weight").filter(|found| found.format.is_multiplied());
        // A weight of another rank is an error when it is used.
        let layer = match found.filter(|_| weight.rank() == rank + 2) {
            None => Self::new(weight, bias, rank, geometry),
            Some(found) => Self::quantized(&found, weight.dims(), bias, geometry)
                .map_err(|error| error.at(name.as_deref().unwrap_or("convolution")))?,
        };
        Ok(Self { name, is_computed: true, ..layer })
    }

    /// A layer of the quantized weight of a checkpoint, for a float weight of `dims`.
    fn quantized(
        found: &QuantizedEntry,
        dims: &[usize],
        bias: Option<Tensor>,
        geometry: Geometry,
    ) -> Result<Self> {
        let shape = geometry.taps(dims);
        let (gates, of_taps) = geometry.gates(bias.as_ref(), dims)?;
        let weight = found.read(&shape, |parts| parts.qweight(gates, of_taps.as_ref()))?;
        let taps = QuantizedTaps::new(weight, dims.to_vec(), geometry);
        let weight = ConvolutionWeight::Quantized(Arc::new(taps));
        let origin = Some(found.origin(&shape));
        let rank = dims.len() - 2;
        Ok(Self::from_parts(weight, bias, rank, geometry, origin))
    }

    /// Loads a weight of `dims`, quantized where the checkpoint has it so.
    pub fn load(
        [out_channels, in_channels]: [usize; 2],
        kernel: &[usize],
        has_bias: bool,
        geometry: Geometry,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let name = prefix_of(vb);
        let at = |error: Error| error.at(name.as_deref().unwrap_or("convolution"));
        let groups = geometry.groups;
        for (side, channels) in [("input", in_channels), ("output", out_channels)] {
            if groups == 0 || !channels.is_multiple_of(groups) {
                let expected = format!("a number that divides {channels} {side} channels");
                return Err(at(Error::argument("groups", expected, groups)).into());
            }
        }
        let channels = if geometry.is_transposed() {
            [in_channels, out_channels / groups]
        } else {
            [out_channels, in_channels / groups]
        };
        let dims = [&channels, kernel].concat();
        sizes::elements("weight", &dims)?;
        let taps: usize = kernel.iter().product();
        let inputs = if geometry.is_transposed() {
            out_channels as f64 * taps as f64
        } else {
            in_channels as f64
        };
        let bound = 1. / inputs.sqrt();
        let uniform = Init::Uniform { lo: -bound, up: bound };
        let bias = || {
            let load = || vb.get_with_hints(out_channels, "bias", uniform);
            has_bias.then(load).transpose()
        };
        let found = find(vb, "weight").filter(|found| found.format.is_multiplied());
        let layer = match found {
            None => {
                let init =
                    if geometry.is_transposed() { uniform } else { init::DEFAULT_KAIMING_NORMAL };
                let weight = vb.get_with_hints(&*dims, "weight", init)?;
                Self::new(weight, bias()?, kernel.len(), geometry)
            }
            Some(found) => Self::quantized(&found, &dims, bias()?, geometry).map_err(at)?,
        };
        Ok(Self { name, ..layer })
    }

    /// The shape of the weight.
    pub fn dims(&self) -> &[usize] {
        match &self.weight {
            ConvolutionWeight::Float(weight) => weight.dims(),
            ConvolutionWeight::Quantized(taps) => &taps.dims,
        }
    }

    pub fn weight(&self) -> &Tensor {
        match &self.weight {
            ConvolutionWeight::Float(weight) => weight,
            ConvolutionWeight::Quantized(taps) => taps.dequantized.get_or_init(|| {
                // A tensor of the right length on the CPU cannot fail to be made.
                let weight = taps.value();
                weight.unwrap_or_else(|error| unreachable!("dequantize: {error}"))
            }),
        }
    }

    pub fn try_forward(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let ys = self.convolve(xs, residual)?;
        match residual {
            Some(residual) => tap::report(self.tap.as_ref(), &[xs, residual], &ys),
            None => tap::report(self.tap.as_ref(), &[xs], &ys),
        }
        Ok(ys)
    }

    fn convolve(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let geometry = self.geometry;
        let shape = self.output_shape(xs).ok_or_else(|| self.no_window(xs))?;
        sizes::computed("convolution", &shape, xs.elem_count())?;
        check_float(xs, "convolution")?;
        if let Some(residual) = residual {
            if residual.dims() != shape {
                return Err(mismatch("residual", format!("{shape:?}"), residual));
            }
            check_float(residual, "residual")?;
        }
        if let ConvolutionWeight::Float(weight) = &self.weight {
            if let Some(bias) = self.bias.as_ref().filter(|bias| bias.dims() != [shape[1]]) {
                return Err(mismatch("bias", format!("[{}]", shape[1]), bias));
            }
            if weight.elem_count() == 0 || shape.contains(&0) {
                let zeros = Tensor::zeros(&*shape, weight.dtype(), weight.device())?;
                return self.finished(zeros, xs, residual);
            }
            let mut tensors =
                [Some(xs), Some(weight), self.bias.as_ref(), residual].into_iter().flatten();
            if tensors.any(|tensor| tensor.track_op() || !tensor.device().is_cpu()) {
                return self.convolve_by_candle(weight, xs, residual);
            }
        }
        let convolution = self.on_images(xs)?;
        let input = as_f32(xs, "convolution")?;
        let elements = Elements::new(&input);
        let added = residual.map(|xs| as_f32(xs, "residual")).transpose()?;
        let terms = added.as_ref().map(Elements::new);
        let terms = terms.as_ref().map(Elements::as_slice).transpose()?;
        // Taps of transposed convolutions overlap.
        let added = terms.filter(|_| !geometry.is_transposed());
        let ys = match &self.weight {
            ConvolutionWeight::Quantized(taps) => {
                let (packed, xs) = (taps.weight.packed(), elements.as_slice()?);
                kernels::convolve(&convolution, packed, xs, added)
            }
            ConvolutionWeight::Float(weight) => {
                let isa = kernels::active()?;
                let weight = as_f32(weight, "convolution")?;
                let values = Elements::new(&weight);
                let bias = match &self.bias {
                    Some(bias) if !geometry.is_transposed() => to_f32_vec(bias, "convolution")?,
                    _ => Vec::new(),
                };
                let weight = kernels::FloatWeight {
                    values: values.as_slice()?,
                    transposed: geometry.is_transposed(),
                    bias: &bias,
                    channels: self.products(),
                };
                kernels::convolve_f32(isa, &convolution, weight, elements.as_slice()?, added)
            }
        };
        let ys = if geometry.is_transposed() {
            self.overlapped(&ys, convolution.shape[3], &shape, terms)?
        } else {
            from_f32_vec(ys, &shape, xs.dtype())?
        };
        let tensors: Vec<_> = [xs].into_iter().chain(residual).collect();
        without_gradient(ys.to_dtype(xs.dtype())?, &tensors)
    }

    /// Channels of the product of each position: the output channels, for a transposed convolution
    /// once a tap.
    fn products(&self) -> usize {
        let dims = self.dims();
        if self.geometry.is_transposed() {
            self.geometry.groups * dims[1] * dims[2]
        } else {
            dims[0]
        }
    }

    /// The convolution that the kernels compute, where a signal is an image of one row, which no
    /// step leaves; transposed, the product of each position.
    fn on_images(&self, xs: &Tensor) -> Result<kernels::Convolution> {
        let (dims, geometry) = (self.dims(), self.geometry);
        let pair = |sizes: &[usize]| match *sizes {
            [width] => [1, width],
            _ => [sizes[0], sizes[1]],
        };
        let of_geometry = |step: usize, none: usize| match self.rank {
            2 => [step, step],
            _ => [none, step],
        };
        let [height, width] = pair(&xs.dims()[2..]);
        let [batch, channels] = [xs.dims()[0], xs.dims()[1]];
        let mut convolution = kernels::Convolution {
            shape: [batch, channels, height, width],
            groups: geometry.groups,
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            activation: None,
        };
        if geometry.is_transposed() {
            sizes::allocated("convolution", &[batch, self.products(), width])?;
        } else {
            convolution.kernel = pair(&dims[2..]);
            convolution.stride = of_geometry(geometry.stride, 1);
            convolution.padding = of_geometry(geometry.padding, 0);
            convolution.dilation = of_geometry(geometry.dilation, 1);
            convolution.activation = self.activation.map(Into::into);
        }
        if let ConvolutionWeight::Quantized(taps) = &self.weight {
            // Memory that is taken beside the output: three numbers and the codes of each position.
            let [rows, columns] = convolution.padding.map(|padding| padding.saturating_mul(2));
            let [rows, columns] = [rows.saturating_add(height), columns.saturating_add(width)];
            let of_position = 3 + taps.weight.packed().groups();
            let positions = [batch, rows, columns, geometry.groups, of_position];
            sizes::allocated("convolution", &positions)?;
        }
        match convolution.out_size() {
            Some(_) => Ok(convolution),
            None => Err(self.no_window(xs)),
        }
    }

    /// The sums of the products of positions, where each tap of each position adds: in the order of
    /// taps, to the bias. The products are `[batch, groups, taps, channels, length]`; of a float
    /// weight, channels come before taps.
    fn overlapped(
        &self,
        products: &[f32],
        length: usize,
        shape: &[usize],
        residual: Option<&[f32]>,
    ) -> Result<Tensor> {
        let (geometry, dims) = (self.geometry, self.dims());
        let &[_, channels, outputs] = shape else {
            return Err(Error::shape("convolution", "[batch, channels, length]", shape));
        };
        let (of_group, taps) = (dims[1], dims[2]);
        let strides = match &self.weight {
            ConvolutionWeight::Float(_) => [taps, 1],
            ConvolutionWeight::Quantized(_) => [1, of_group],
        };
        let bias = match &self.bias {
            Some(bias) => to_f32_vec(bias, "convolution")?,
            None => vec![0.; channels],
        };
        let mut ys = vec![0f32; shape.iter().product()];
        kernels::for_each_row(&mut ys, outputs, |row, ys| {
            ys.fill(bias[row % channels]);
            // Groups of all samples follow one another.
            let first = row / of_group * taps * of_group + row % of_group * strides[0];
            for tap in 0..taps {
                let products = &products[(first + tap * strides[1]) * length..][..length];
                // Position i adds to output `i * stride + offset - padding`.
                let offset = tap * geometry.dilation;
                let before = geometry.padding.saturating_sub(offset);
                let before = before.div_ceil(geometry.stride.max(1));
                let first = before.saturating_mul(geometry.stride).saturating_add(offset);
                let first = first.saturating_sub(geometry.padding);
                let ys = ys.iter_mut().skip(first).step_by(geometry.stride.max(1));
                for (y, product) in ys.zip(products.iter().skip(before)) {
                    *y += product;
                }
            }
            let terms = residual.map(|residual| &residual[row * outputs..][..outputs]);
            for (y, term) in ys.iter_mut().zip(terms.unwrap_or_default()) {
                *y += term;
            }
        });
        let ys = from_f32_vec(ys, shape, DType::F32)?;
        match self.activation {
            None => Ok(ys),
            Some(activation) => Ok(ops::activate(&ys, activation)?),
        }
    }

    /// The error of an input of another shape, or without a window.
    fn no_window(&self, xs: &Tensor) -> Error {
        let (dims, geometry) = (self.dims(), self.geometry);
        let channels = match (dims.len() > 1, geometry.is_transposed()) {
            (false, _) => 0,
            (true, true) => dims[0],
            (true, false) => dims[1].saturating_mul(geometry.groups),
        };
        let sizes = ["length", "height, width"][usize::from(self.rank == 2)];
        let expected = format!(
            "[batch, {channels}, {sizes}], at least one window of {:?} with padding {}, stride {} \
             and dilation {}",
            dims.get(2..).unwrap_or_default(),
            geometry.padding,
            geometry.stride,
            geometry.dilation
        );
        mismatch("convolution", expected, xs)
    }

    /// The shape of the output; `None` of an input of another shape, or without a window.
    fn output_shape(&self, xs: &Tensor) -> Option<Vec<usize>> {
        let (dims, geometry) = (self.dims(), self.geometry);
        let ([_, _, taps @ ..], [batch, channels, sizes @ ..]) = (dims, xs.dims()) else {
            return None;
        };
        if geometry.groups == 0 || [sizes.len(), taps.len()] != [self.rank; 2] {
            return None;
        }
        let [out_channels, in_channels] = geometry.channels(dims);
        let out_channels = out_channels.checked_mul(geometry.groups)?;
        let in_channels = in_channels.checked_mul(geometry.groups)?;
        if *channels != in_channels || !dims[0].is_multiple_of(geometry.groups) {
            return None;
        }
        let outputs = sizes.iter().zip(taps);
        let outputs = outputs.map(|(size, taps)| geometry.outputs(*size, *taps));
        let mut shape = vec![*batch, out_channels];
        shape.extend(outputs.collect::<Option<Vec<_>>>()?);
        Some(shape)
    }

    /// candle's convolution, in the dtype of the weight, so that gradients flow.
    fn convolve_by_candle(
        &self,
        weight: &Tensor,
        xs: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let input = xs.to_dtype(weight.dtype())?;
        let Geometry { padding, stride, dilation, groups, cudnn_fwd_algo: algo, output_padding } =
            self.geometry;
        let ys = match (output_padding, self.rank) {
            // candle's is wrong for the second sample and those behind it, without padding.
            (Some(more), _) => {
                let sample = |i| {
                    input
                        .narrow(0, i, 1)?
                        .conv_transpose1d(weight, padding, more, stride, dilation, groups)
                };
                let samples = (0..xs.dims()[0]).map(sample);
                Tensor::cat(&samples.collect::<CandleResult<Vec<_>>>()?, 0)?
            }
            (None, 2) => input.conv2d_with_algo(weight, padding, stride, dilation, groups, algo)?,
            (None, _) => input.conv1d_with_algo(weight, padding, stride, dilation, groups, algo)?,
        };
        self.finished(ys, xs, residual)
    }

    /// The products with the bias and a residual, activated, in the dtype of the input.
    fn finished(&self, ys: Tensor, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let ys = match &self.bias {
            Some(bias) => {
                let mut of_channels = vec![1; ys.rank()];
                of_channels[1] = bias.elem_count();
                ys.broadcast_add(&bias.reshape(of_channels)?)?
            }
            None => ys,
        };
        let ys = match residual {
            Some(residual) => (&ys + residual.to_dtype(ys.dtype())?)?,
            None => ys,
        };
        let ys = match self.activation {
            None => ys,
            Some(activation) => ops::activate(&ys, activation)?,
        };
        Ok(ys.to_dtype(xs.dtype())?)
    }

    pub fn info(&self) -> WeightInfo {
        WeightInfo {
            origin: self.origin.clone(),
            convolution: self.geometry.cost(self.dims()),
            ..match &self.weight {
                ConvolutionWeight::Float(weight) => WeightInfo::of_float("weight", weight),
                ConvolutionWeight::Quantized(taps) => {
                    WeightInfo { shape: taps.dims.clone(), ..weight_info(&taps.weight, "weight") }
                }
            }
        }
    }

    pub fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        if let Some((layer, norm)) = self.without_norm()? {
            return layer.quantize(qconfig)?.fold(&norm.scale, &norm.shift);
        }
        let ConvolutionWeight::Float(weight) = &self.weight else {
            let got = "one that is quantized already";
            return Err(Error::qconfig("a float weight", got));
        };
        let (dims, geometry) = (weight.dims().to_vec(), self.geometry);
        Geometry::check(qconfig)?;
        geometry.check_weight(&dims, self.rank)?;
        let (gates, bias) = geometry.gates(self.bias.as_ref(), &dims)?;
        let matrix = geometry.matrix(weight)?;
        let weight = QWeight::of_gates(gates, &matrix, bias.as_ref(), qconfig, None)?;
        Ok(Self {
            weight: ConvolutionWeight::Quantized(Arc::new(QuantizedTaps::new(
                weight, dims, geometry,
            ))),
            tap: None,
            ..self.clone()
        })
    }

    pub fn stored(&self) -> Result<StoredWeight> {
        if let Some((layer, _)) = self.without_norm()? {
            return layer.stored();
        }
        let value = match &self.weight {
            ConvolutionWeight::Float(weight) => {
                StoredValue::Float { weight: weight.clone(), folded: self.folded }
            }
            ConvolutionWeight::Quantized(taps) => StoredValue::Quantized(Quantized::Weight {
                weight: Arc::clone(&taps.weight),
                multiplied: true,
                shapes: Some([taps.shape(), taps.dims.clone()]),
            }),
        };
        let weight = StoredWeight::new("weight", value).with_bias(self.bias.clone());
        Ok(weight.computed(self.is_computed))
    }

    pub fn value(&self) -> Result<Tensor> {
        match &self.weight {
            ConvolutionWeight::Float(weight) => Ok(weight.clone()),
            ConvolutionWeight::Quantized(taps) => taps.value(),
        }
    }

    /// This convolution with the weights of each input channel (`dim` 1), in all taps, times a
    /// factor; `None` if it is quantized, has groups or other channels, and for outputs.
    pub fn scale(&self, dim: usize, factors: &Tensor) -> Result<Option<Self>> {
        if let Some((layer, norm)) = self.without_norm()? {
            let scaled = layer.scale(dim, factors)?;
            return (scaled.map(|layer| layer.fold(&norm.scale, &norm.shift))).transpose();
        }
        let ConvolutionWeight::Float(weight) = &self.weight else {
            return Ok(None);
        };
        let [_, axis] = self.geometry.channels(&[0, 1]);
        let is_input = weight.dims().get(axis) == Some(&factors.elem_count());
        if dim == 0 || self.geometry.groups != 1 || !is_input {
            return Ok(None);
        }
        let mut shape = vec![1; weight.rank()];
        shape[axis] = factors.elem_count();
        let factors = factors.to_dtype(weight.dtype())?.reshape(shape)?;
        Ok(Some(Self {
            weight: ConvolutionWeight::Float(weight.broadcast_mul(&factors)?),
            folded: true,
            tap: None,
            ..self.clone()
        }))
    }

    pub fn replay(&self) -> Replay {
        let convolution = self.clone();
        Arc::new(move |inputs| match inputs {
            [xs] => convolution.convolve(xs, None),
            [xs, residual] => convolution.convolve(xs, Some(residual)),
            _ => Err(tap::unlike("one input", inputs)),
        })
    }

    /// This convolution with a batch norm behind it folded in.
    pub fn with_batch_norm(&self, norm: &BatchNorm) -> Result<Self> {
        let [scale, shift] = batch_norm::factors(norm)?;
        self.fold(&scale, &shift)
    }

    /// This convolution with its output times a scale, plus a shift.
    fn fold(&self, scale: &Tensor, shift: &Tensor) -> Result<Self> {
        let (dims, geometry) = (self.dims(), self.geometry);
        geometry.check_weight(dims, self.rank)?;
        geometry.check_bias(self.bias.as_ref(), dims)?;
        if geometry.channels(dims)[0] * geometry.groups != scale.elem_count() {
            let expected = format!("one of the channels of a weight {dims:?}");
            return Err(mismatch("batch norm", expected, scale));
        }
        let bias = match &self.bias {
            Some(bias) => (finite("bias", bias)?.mul(scale)? + shift)?,
            None => shift.clone(),
        };
        // candle's norms have variables.
        let cast = |what, tensor: Tensor, dtype| {
            let tensor = tensor.to_dtype(dtype)?.detach();
            finite(what, &tensor.flatten_all()?)?;
            Ok::<_, Error>(tensor)
        };
        let (weight, bias, before) = match &self.weight {
            ConvolutionWeight::Float(weight) => {
                let groups = geometry.groups;
                let by_group = [&[groups, dims[0] / groups], &dims[1..]].concat();
                let mut of_channels = vec![1; by_group.len()];
                of_channels[0] = groups;
                of_channels[1 + usize::from(geometry.is_transposed())] = geometry.channels(dims)[0];
                let folded = weight.to_dtype(DType::F64)?.reshape(by_group)?;
                let folded = folded.broadcast_mul(&scale.reshape(of_channels)?)?.reshape(dims)?;
                let folded =
                    ConvolutionWeight::Float(cast("folded weight", folded, weight.dtype())?);
                (folded, cast("folded bias", bias, weight.dtype())?, weight.clone())
            }
            ConvolutionWeight::Quantized(taps) => {
                let bias = cast("folded bias", bias, DType::F32)?;
                let before =
                    Tensor::new(taps.scales(&vec![1.; scale.elem_count()]), bias.device())?;
                let folded = taps.with_scales(&taps.scales(&scale.to_vec1()?), Some(&bias))?;
                (ConvolutionWeight::Quantized(folded), bias, before)
            }
        };
        let mut layer = self.clone();
        layer.norm = Some(Arc::new(FoldedNorm {
            scale: scale.clone(),
            shift: shift.clone(),
            weight: before,
            bias: layer.bias.replace(bias),
            before: layer.norm.take(),
        }));
        layer.weight = weight;
        Ok(layer)
    }

    /// This convolution without the norm that was folded in last, and the norm.
    fn without_norm(&self) -> Result<Option<(Self, &FoldedNorm)>> {
        let Some(norm) = self.norm.as_deref() else {
            return Ok(None);
        };
        let mut layer = self.clone();
        (layer.norm, layer.bias) = (norm.before.clone(), norm.bias.clone());
        layer.weight = match &self.weight {
            ConvolutionWeight::Float(_) => ConvolutionWeight::Float(norm.weight.clone()),
            ConvolutionWeight::Quantized(taps) => {
                let scales = norm.weight.to_vec1()?;
                ConvolutionWeight::Quantized(taps.with_scales(&scales, norm.bias.as_ref())?)
            }
        };
        Ok(Some((layer, norm)))
    }
}
