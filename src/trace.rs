//! Spans for a subscriber of `tracing`; nothing without the feature of that name.
//!
//! Quantizing is traced from level INFO on, the forward calls of layers at level TRACE: unless a
//! subscriber asks for that level, a call costs one relaxed load and a branch.

/// The span of a forward call, until it is dropped.
#[cfg(feature = "tracing")]
pub type Span = tracing::span::EnteredSpan;
#[cfg(not(feature = "tracing"))]
#[derive(Debug)]
pub struct Span;

/// The span of the forward call of a layer, by candle-transformers' name for its kind, or of an
/// operation, which has no name of its own.
macro_rules! span {
    ($kind:literal $(, $name:expr)?) => {{
        #[cfg(feature = "tracing")]
        {
            tracing::trace_span!(target: "candle_dynquant::forward", $kind $(, layer = $name)?)
                .entered()
        }
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = $name;)?
            $crate::trace::Span
        }
    }};
}

/// Traces the rest of the block as a [`span`].
macro_rules! forward {
    ($($span:tt)+) => {
        let _span = $crate::trace::span!($($span)+);
    };
}

/// Traces the rest of the block as the quantization of a model, with the total to be done.
macro_rules! quantize {
    ($isa:expr, $total:expr) => {
        #[cfg(not(feature = "tracing"))]
        let _ = $total;
        #[cfg(feature = "tracing")]
        let _span = tracing::info_span!(
            target: "candle_dynquant",
            "quantize_dynamic",
            isa = %$isa,
            layers = $total.total_layers,
            bytes = $total.total_bytes,
        )
        .entered();
    };
}

/// Traces the rest of the block as the quantization of a layer, with its weights as they are
/// before.
macro_rules! quantize_layer {
    ($path:expr, $layer:expr, $weights:expr, $qconfig:expr) => {
        #[cfg(feature = "tracing")]
        let _span = tracing::debug_span!(
            target: "candle_dynquant",
            "quantize_layer",
            path = $path,
            kind = %$layer.kind(),
            dtype = $weights.first().map(|weight| tracing::field::debug(weight.dtype)),
            elements = $weights.iter().map(|w| w.shape.iter().product::<usize>()).sum::<usize>(),
            to = %$qconfig,
        )
        .entered();
    };
}

/// The event of a model whose quantized layers are in their places.
macro_rules! installed {
    ($report:expr) => {
        #[cfg(feature = "tracing")]
        tracing::info!(
            target: "candle_dynquant",
            layers = $report.swapped().count(),
            bytes_before = $report.bytes_before(),
            bytes_after = $report.bytes_after(),
            "quantized",
        );
    };
}

pub(crate) use {forward, installed, quantize, quantize_layer, span};
