//! The common part of all recurrent layers.

/// The constructor and the implementations that all layers around a [`Stack`](super::stack::Stack)
/// or a cell share.
///
/// The constructor has the parameters in brackets; `$layer_kind` may be one of them, and the
/// weights are loaded with the parameter that is named last.
macro_rules! recurrent_layer {
    (
        $layer:ident { $inner:ident: $Inner:ty }, $layer_kind:expr,
        [$($param:ident: $Param:ty),+], $options:ident
    ) => {
        impl $layer {
            /// Loads the layer from `vb`.
            ///
            /// # Errors
            /// When a tensor is missing or has another shape, or the options make no sense.
            pub fn new(
                input_size: usize,
                hidden_size: usize,
                $($param: $Param,)+
                vb: candle_nn::VarBuilder<'_>,
            ) -> $crate::error::Result<Self> {
                let $inner = <$Inner>::load($layer_kind, [input_size, hidden_size], $options, &vb)?;
                Ok(Self { $inner })
            }
        }

        impl $crate::module::Layer for $layer {
            fn kind(&self) -> $crate::module::LayerKind {
                $crate::module::LayerKind::$layer
            }

            fn checkpoint_name(&self) -> Option<&str> {
                self.$inner.name()
            }

            fn weight_infos(&self) -> Vec<$crate::module::WeightInfo> {
                self.$inner.directions().iter().flat_map(Direction::weight_infos).collect()
            }

            fn quantize(&self, qconfig: &$crate::qconfig::QConfig) -> $crate::error::Result<Self> {
                Ok(Self {
                    $inner: self.$inner.quantize(qconfig)?,
                })
            }

            fn stored(&self) -> $crate::error::Result<Vec<$crate::weight::StoredWeight>> {
                Ok(self.$inner.directions().iter().flat_map(Direction::stored).collect())
            }

            fn weights(&self) -> $crate::error::Result<Vec<candle_core::Tensor>> {
                let all = self.$inner.directions().iter().flat_map(Direction::projections);
                all.map($crate::nn::projection::Projection::value).collect()
            }

            fn attach(&mut self, tap: Option<$crate::tap::Tap>) -> bool {
                self.$inner.tap = tap;
                true
            }

            fn replay(&self) -> Option<$crate::tap::Replay> {
                let layer = self.$inner.clone();
                Some(std::sync::Arc::new(move |inputs| layer.replay(inputs)))
            }
        }

        $crate::module::trees::layers! { $layer }
    };
}
pub(super) use recurrent_layer;

/// `forward` and `forward_lengths` of a layer whose state is h alone, where `Tensor`, `Result` and
/// [`Given`](super::state::Given) are in scope.
macro_rules! forward_h {
    ($layer:ident, $span:literal) => {
        impl $layer {
            /// Output and last state; the state before the first step is `h`, or zeros.
            ///
            /// # Errors
            /// When the input or the state has a wrong shape or dtype, or is on another device than
            /// the weights.
            pub fn forward(&self, xs: &Tensor, h: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
                self.run(xs, None, h)
            }

            /// [`forward`](Self::forward) over sequences of different lengths: the rest of each is
            /// padding, which influences nothing and is zero in the output.
            ///
            /// # Errors
            /// Also when there is not one length a sequence, or one is longer than the input.
            pub fn forward_lengths(
                &self,
                xs: &Tensor,
                lengths: &[usize],
                h: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                self.run(xs, Some(lengths), h)
            }

            fn run(
                &self,
                xs: &Tensor,
                lengths: Option<&[usize]>,
                h: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                $crate::trace::forward!($span, self.stack.name());
                let given = Given { xs, h, c: None };
                let states = self.stack.forward(stringify!($layer), given, lengths)?;
                Ok((states.ys, states.h))
            }
        }
    };
}
pub(super) use forward_h;
