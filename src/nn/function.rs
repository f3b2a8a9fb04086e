//! Layers defined by closures, which show the layers that they are given.

use std::fmt;
use std::sync::Arc;

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::{Module, ModuleT};

use crate::error::Result;
use crate::module::trees::trees;
use crate::module::{Quantizable, Walk, WalkMut};

/// Layers and a closure over them; `A` is the further argument of the closure.
trait Body<A>: Send + Sync {
    fn forward(&self, xs: &Tensor, argument: A) -> CandleResult<Tensor>;

    fn visit(&self, walk: &mut Walk<'_>) -> Result<()>;

    /// A copy whose layers were shown to `walk`.
    fn changed<'b>(&self, walk: &mut WalkMut<'_>) -> Result<Shared<'b, A>>
    where
        Self: 'b;
}

type Shared<'a, A> = Arc<dyn Body<A> + 'a>;

struct Over<L, F> {
    layers: L,
    forward: Arc<F>,
    /// The type of a closure that captures values, which may be layers.
    captures: Option<&'static str>,
}

impl<A, L, F> Body<A> for Over<L, F>
where
    L: Quantizable + Clone + Send + Sync,
    F: Fn(&L, &Tensor, A) -> CandleResult<Tensor> + Send + Sync,
{
    fn forward(&self, xs: &Tensor, argument: A) -> CandleResult<Tensor> {
        (self.forward)(&self.layers, xs, argument)
    }

    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        if let Some(type_name) = self.captures {
            walk.opaque_here(type_name);
        }
        self.layers.visit(walk)
    }

    fn changed<'b>(&self, walk: &mut WalkMut<'_>) -> Result<Shared<'b, A>>
    where
        Self: 'b,
    {
        let mut layers = self.layers.clone();
        layers.visit_mut(walk)?;
        Ok(Arc::new(Self { layers, forward: Arc::clone(&self.forward), captures: self.captures }))
    }
}

fn over<'a, A: 'a, L, F>(layers: L, forward: F, captures: Option<&'static str>) -> Shared<'a, A>
where
    L: 'a + Quantizable + Clone + Send + Sync,
    F: 'a + Fn(&L, &Tensor, A) -> CandleResult<Tensor> + Send + Sync,
{
    let forward = Arc::new(forward);
    Arc::new(Over { layers, forward, captures })
}

/// A layer defined by a closure, call-compatible with [`candle_nn::Func`], which may hold layers.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec};
///
/// let weight = Tensor::randn(0f32, 1., (64, 32, 5), &Device::Cpu)?;
/// let conv = nn::Conv1d::new(weight, None, Default::default());
/// let mut block = nn::Func::holding(conv, |conv, xs| xs.apply(conv)?.relu());
/// let report = quantize_dynamic(&mut block, &QConfigSpec::int8())?;
/// assert_eq!(report.swapped().count(), 1);
/// let ys = block.forward(&Tensor::ones((1, 32, 7), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [1, 64, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Func<'a> {
    body: Shared<'a, ()>,
}

/// A layer defined by a closure that is told whether the model is trained, call-compatible with
/// [`candle_nn::FuncT`], which may hold layers as [`Func`] does.
#[derive(Clone)]
pub struct FuncT<'a> {
    body: Shared<'a, bool>,
}

impl<'a> Func<'a> {
    /// A layer of a closure. Layers that it captures are not seen by a walk, which reports it as
    /// opaque then.
    pub fn new<F>(f: F) -> Self
    where
        F: 'a + Fn(&Tensor) -> CandleResult<Tensor> + Send + Sync,
    {
        let captures = (size_of::<F>() > 0).then(std::any::type_name::<F>);
        let body = over((), move |(), xs: &Tensor, ()| f(xs), captures);
        Self { body }
    }

    /// A layer of a closure over a tree of layers, which a walk sees in its place. What the closure
    /// captures besides is not looked at.
    pub fn holding<L, F>(layers: L, f: F) -> Self
    where
        L: 'a + Quantizable + Clone + Send + Sync,
        F: 'a + Fn(&L, &Tensor) -> CandleResult<Tensor> + Send + Sync,
    {
        let body = over(layers, move |layers: &L, xs: &Tensor, ()| f(layers, xs), None);
        Self { body }
    }
}

impl<'a> FuncT<'a> {
    /// A layer of a closure: see [`Func::new`].
    pub fn new<F>(f: F) -> Self
    where
        F: 'a + Fn(&Tensor, bool) -> CandleResult<Tensor> + Send + Sync,
    {
        let captures = (size_of::<F>() > 0).then(std::any::type_name::<F>);
        let body = over((), move |(), xs: &Tensor, train| f(xs, train), captures);
        Self { body }
    }

    /// A layer of a closure over a tree of layers: see [`Func::holding`].
    pub fn holding<L, F>(layers: L, f: F) -> Self
    where
        L: 'a + Quantizable + Clone + Send + Sync,
        F: 'a + Fn(&L, &Tensor, bool) -> CandleResult<Tensor> + Send + Sync,
    {
        let body = over(layers, f, None);
        Self { body }
    }
}

/// [`Func::new`].
pub fn func<'a, F>(f: F) -> Func<'a>
where
    F: 'a + Fn(&Tensor) -> CandleResult<Tensor> + Send + Sync,
{
    Func::new(f)
}

/// [`FuncT::new`].
pub fn func_t<'a, F>(f: F) -> FuncT<'a>
where
    F: 'a + Fn(&Tensor, bool) -> CandleResult<Tensor> + Send + Sync,
{
    FuncT::new(f)
}

impl Module for Func<'_> {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        self.body.forward(xs, ())
    }
}

impl ModuleT for FuncT<'_> {
    fn forward_t(&self, xs: &Tensor, train: bool) -> CandleResult<Tensor> {
        self.body.forward(xs, train)
    }
}

impl fmt::Debug for Func<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("func")
    }
}

impl fmt::Debug for FuncT<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("func")
    }
}

trees! { self, walk:
    [] Func<'_> => self.body.visit(walk), {
        self.body = self.body.changed(walk)?;
        Ok(())
    };
    [] FuncT<'_> => self.body.visit(walk), {
        self.body = self.body.changed(walk)?;
        Ok(())
    };
}
