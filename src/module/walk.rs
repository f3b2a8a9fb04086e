//! The walk over a module tree: keeps the path, remembers shared pointers, calls the visitor.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use candle_core::Tensor;
use candle_core::quantized::{GgmlDType, QTensor};

use super::layer::Layer;
use super::norm::AnyNorm;
use super::tied::WeightId;
use super::weight_info::{WeightDType, WeightInfo};
use crate::error::{Error, Fault, Result};

/// A module tree that shows its layers by name; [derive it](macro@crate::Quantizable).
///
/// ```
/// use candle_dynquant::{nn, Quantizable};
///
/// #[derive(Quantizable, Clone)]
/// struct Mlp {
///     up: nn::Linear,
///     down: nn::Linear,
///     hidden: usize, // holds no layer
/// }
/// ```
///
/// `visit` and `visit_mut` must show the same layers under the same names.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module tree",
    label = "this field is not `Quantizable`",
    note = "derive it with `#[derive(Quantizable)]`, or mark the field `#[quantizable(skip)]`",
    note = "for a layer of `candle_nn`, take its namesake in `candle_dynquant::nn`"
)]
pub trait Quantizable {
    /// Shows every layer below to `walk`.
    ///
    /// # Errors
    /// Errors of the visitor behind `walk`.
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()>;

    /// Shows every layer below to `walk`, which may replace it.
    ///
    /// # Errors
    /// Errors of the visitor behind `walk`.
    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()>;
}

/// A tensor in the tree that no layer holds, as a walk shows it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TensorField<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// The layer of candle's that holds it and that is not quantized: a convolution.
    pub held_by: Option<&'static str>,
    /// Whether it is in a type marked `#[quantizable(strict)]`, or below one.
    pub strict: bool,
}

/// Visits a tree without changing it.
pub trait Visitor {
    /// A layer at `path`.
    ///
    /// # Errors
    /// An error ends the walk.
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()>;

    /// A norm at `path`.
    #[doc(hidden)]
    fn norm(&mut self, path: &str, norm: &dyn AnyNorm) -> Result<()> {
        let _ = (path, norm);
        Ok(())
    }

    /// A tensor at `path` that no layer holds.
    #[doc(hidden)]
    fn tensor(&mut self, path: &str, tensor: TensorField<'_>) {
        let _ = (path, tensor);
    }

    /// A field at `path` that is not a module tree, with the name of its type, and whether the type
    /// is `Copy`, as no type is that owns a layer.
    #[doc(hidden)]
    fn opaque(&mut self, path: &str, type_name: &'static str, is_copy: bool) {
        let _ = (path, type_name, is_copy);
    }

    /// The `Arc` or `Rc` at `path` is the one visited at `first`.
    #[doc(hidden)]
    fn shared(&mut self, path: &str, first: &str) {
        let _ = (path, first);
    }
}

/// Visits the layers of a tree and may change them.
pub trait VisitorMut {
    /// A layer at `path`; returns whether it was changed.
    ///
    /// # Errors
    /// An error ends the walk.
    fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool>;

    /// A norm at `path`; returns whether it was changed.
    fn norm(&mut self, path: &str, norm: &mut dyn AnyNorm) -> Result<bool> {
        let _ = (path, norm);
        Ok(false)
    }
}

/// Appends a segment to a dotted path, `encoder.layer.0.query`; the length that it had before.
fn push(path: &mut String, name: impl fmt::Display) -> usize {
    use fmt::Write;
    let before = path.len();
    let dot = if before == 0 { "" } else { "." };
    // Writing to a String cannot fail.
    let _ = write!(path, "{dot}{name}");
    before
}

/// A shared pointer to a module tree.
pub(super) trait Pointer:
    Deref<Target: Quantizable + Sized> + From<<Self as Deref>::Target> + Clone + 'static
{
}

impl<T: Quantizable + 'static> Pointer for Arc<T> {}
impl<T: Quantizable + 'static> Pointer for Rc<T> {}

type SharedKey = (*const (), TypeId);

fn shared_key<P: Pointer>(shared: &P) -> SharedKey {
    (std::ptr::from_ref(&**shared).cast(), TypeId::of::<P>())
}

/// The place where a walk met a shared pointer first.
struct Met {
    path: String,
    /// Whether that, or a place where it was met since, is in a strict type.
    strict: bool,
}

/// Shows the tensors of what was visited before.
struct TensorsOnly<'a>(&'a mut dyn Visitor);

impl Visitor for TensorsOnly<'_> {
    fn layer(&mut self, _path: &str, _layer: &dyn Layer) -> Result<()> {
        Ok(())
    }

    fn tensor(&mut self, path: &str, tensor: TensorField<'_>) {
        self.0.tensor(path, tensor);
    }
}

/// Findings of a walk for this crate alone, beside the visitor's.
#[derive(Default)]
pub(crate) struct Aside {
    /// candle's quantized tensors of floats that belong to no layer.
    pub matrices: Vec<FoundTensor>,
    /// Paths of `VarBuilder`s in strict types.
    pub strict_builders: Vec<String>,
}

/// A float matrix that a walk met outside of layers.
pub(crate) struct FoundTensor {
    pub path: String,
    pub held_by: Option<&'static str>,
    /// Whether it is in a strict type.
    pub strict: bool,
    /// The description, without a name.
    pub info: WeightInfo,
}

/// A walk that looks at every layer of a tree.
pub struct Walk<'v> {
    path: String,
    shared: HashMap<SharedKey, Met>,
    /// Whether the walk is in a strict type, or below one.
    strict: bool,
    aside: Aside,
    visitor: &'v mut dyn Visitor,
}

impl fmt::Debug for Walk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Walk at {:?}", self.path)
    }
}

impl<'v> Walk<'v> {
    /// Walks `root` and shows its layers to `visitor`.
    ///
    /// # Errors
    /// The first error of the visitor.
    pub fn over<M: Quantizable + ?Sized>(root: &M, visitor: &'v mut dyn Visitor) -> Result<()> {
        Self::over_with_aside(root, visitor).map(drop)
    }

    /// Shows the layers of `root` to a function.
    pub(crate) fn layers<M: Quantizable + ?Sized>(
        root: &M,
        show: impl FnMut(&str, &dyn Layer) -> Result<()>,
    ) -> Result<()> {
        struct Layers<F>(F);

        impl<F: FnMut(&str, &dyn Layer) -> Result<()>> Visitor for Layers<F> {
            fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
                self.0(path, layer)
            }
        }

        Walk::over(root, &mut Layers(show))
    }

    /// [`over`](Self::over), with the findings for this crate alone.
    pub(crate) fn over_with_aside<M: Quantizable + ?Sized>(
        root: &M,
        visitor: &'v mut dyn Visitor,
    ) -> Result<Aside> {
        let mut walk = Self {
            path: String::new(),
            shared: HashMap::new(),
            strict: false,
            aside: Aside::default(),
            visitor,
        };
        root.visit(&mut walk)?;
        Ok(walk.aside)
    }

    /// Visits a child under `name`.
    ///
    /// # Errors
    /// As [`Quantizable::visit`].
    pub fn child<M: Quantizable + ?Sized>(
        &mut self,
        name: impl fmt::Display,
        child: &M,
    ) -> Result<()> {
        self.below(name, |walk| child.visit(walk))
    }

    /// The result of `visit` at the path with `name` behind it.
    pub(super) fn below<T>(
        &mut self,
        name: impl fmt::Display,
        visit: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let before = push(&mut self.path, name);
        let result = visit(self);
        self.path.truncate(before);
        result
    }

    /// Shows a layer at the present path.
    #[doc(hidden)]
    pub fn layer<L: Layer>(&mut self, layer: &L) -> Result<()> {
        let shown = self.visitor.layer(&self.path, layer);
        shown.map_err(|e| e.at(&self.path))
    }

    /// Shows a norm at the present path.
    pub(crate) fn norm(&mut self, norm: &dyn AnyNorm) -> Result<()> {
        let shown = self.visitor.norm(&self.path, norm);
        shown.map_err(|e| e.at(&self.path))
    }

    /// Shows a tensor at the present path that no layer holds.
    pub fn tensor(&mut self, tensor: &Tensor) {
        self.show_tensor(tensor, None);
    }

    /// Shows the tensor under `name` that a layer of candle's holds.
    pub(super) fn tensor_of(&mut self, holder: &'static str, name: &str, tensor: &Tensor) {
        self.below(name, |walk| walk.show_tensor(tensor, Some(holder)));
    }

    /// Reports a quantized tensor of candle's at the present path, if its elements are floats.
    pub(super) fn quantized_tensor(&mut self, tensor: &QTensor, id: Option<WeightId>) {
        let dtype = match tensor.dtype() {
            GgmlDType::F32 => WeightDType::F32,
            GgmlDType::F16 => WeightDType::F16,
            GgmlDType::BF16 => WeightDType::BF16,
            _ => return,
        };
        let (shape, bytes) = (tensor.shape().dims(), tensor.storage_size_in_bytes());
        let info = WeightInfo::new("", shape, dtype, bytes);
        self.aside.matrices.push(FoundTensor {
            path: self.path.clone(),
            held_by: None,
            strict: self.strict,
            info: WeightInfo { id, ..info },
        });
    }

    fn show_tensor(&mut self, tensor: &Tensor, held_by: Option<&'static str>) {
        let field = TensorField { tensor, held_by, strict: self.strict };
        self.visitor.tensor(&self.path, field);
    }

    /// Calls `visit`, and shows all tensors within as part of a strict type.
    pub(super) fn strict(&mut self, visit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let outer = std::mem::replace(&mut self.strict, true);
        let result = visit(self);
        self.strict = outer;
        result
    }

    /// Reports that the value at the current path is not a module tree.
    pub(crate) fn opaque_here(&mut self, type_name: &'static str) {
        self.visitor.opaque(&self.path, type_name, false);
    }

    /// Reports that the value at the current path is not a module tree, and of a `Copy` type.
    pub(super) fn opaque_copy_here(&mut self, type_name: &'static str) {
        self.visitor.opaque(&self.path, type_name, true);
    }

    pub(super) fn var_builder(&mut self, type_name: &'static str) {
        if self.strict {
            self.aside.strict_builders.push(self.path.clone());
        }
        self.opaque_here(type_name);
    }

    /// Visits what `shared` points to, the first time this pointer is met. If that was in no strict
    /// type, its tensors are shown again where it is met in one.
    pub(super) fn shared<P: Pointer>(&mut self, shared: &P) -> Result<()> {
        let Some(met) = self.shared.get_mut(&shared_key(shared)) else {
            let path = self.path.clone();
            let strict = self.strict;
            self.shared.insert(shared_key(shared), Met { path, strict });
            return (**shared).visit(self);
        };
        self.visitor.shared(&self.path, &met.path);
        if !self.strict || std::mem::replace(&mut met.strict, true) {
            return Ok(());
        }
        let mut again = Walk {
            path: std::mem::take(&mut self.path),
            shared: std::mem::take(&mut self.shared),
            strict: true,
            aside: std::mem::take(&mut self.aside),
            visitor: &mut TensorsOnly(&mut *self.visitor),
        };
        let result = (**shared).visit(&mut again);
        (self.path, self.shared, self.aside) = (again.path, again.shared, again.aside);
        result
    }

    /// The error of a cell or a lock at the current path that is borrowed or locked.
    pub(super) fn in_use(&self, what: &'static str) -> Error {
        Error::from(Fault::InUse { what }).at(&self.path)
    }
}

/// A walk that may replace every layer of a tree.
pub struct WalkMut<'v> {
    path: String,
    /// The shared pointers that were visited, each the first time it was met.
    shared: HashMap<SharedKey, Replaced>,
    /// Whether the pointers are another walk's, by their new addresses: the old ones are put back,
    /// and none is visited.
    puts_back: bool,
    changes: usize,
    visitor: &'v mut dyn VisitorMut,
}

/// A shared pointer that was visited: the old one, which keeps its address from being reused, and
/// its replacement.
struct Replaced {
    old: Box<dyn Any>,
    new: Box<dyn Any>,
    /// The address of the replacement.
    key: SharedKey,
}

impl fmt::Debug for WalkMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WalkMut at {:?}", self.path)
    }
}

impl<'v> WalkMut<'v> {
    /// Walks `root` and shows its layers to `visitor`.
    #[doc(hidden)]
    pub fn over<M: Quantizable + ?Sized>(
        root: &mut M,
        visitor: &'v mut dyn VisitorMut,
    ) -> Result<()> {
        root.visit_mut(&mut Self::new(visitor))
    }

    fn new(visitor: &'v mut dyn VisitorMut) -> Self {
        Self { path: String::new(), shared: HashMap::new(), puts_back: false, changes: 0, visitor }
    }

    /// [`over`](Self::over), after which either all is changed or nothing: where it ends early, by
    /// an error or a panic, a second walk shows each layer outside of shared pointers again, to
    /// `undo`, and puts the pointers themselves back. Returns the visitor.
    pub(crate) fn over_or_undo<M: Quantizable + ?Sized, V: VisitorMut>(
        root: &mut M,
        mut visitor: V,
        undo: impl FnOnce(V) -> Box<dyn VisitorMut>,
    ) -> Result<V> {
        let (result, pointers) = Self::change(root, &mut visitor);
        let failure = match result {
            Ok(Ok(())) => return Ok(visitor),
            Ok(Err(error)) => Ok(error),
            Err(panic) => Err(panic),
        };
        Self::put_back(root, &mut *undo(visitor), pointers);
        Err(failure.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Calls `run` with the tree as `change` makes it, and makes it what it was by `undo`, which is
    /// shown each layer outside of shared pointers; also after an error or a panic.
    pub(crate) fn over_while<M: Quantizable + ?Sized, T>(
        root: &mut M,
        change: &mut dyn VisitorMut,
        run: impl FnOnce(&M) -> T,
        undo: &mut dyn VisitorMut,
    ) -> Result<T> {
        let (changed, pointers) = Self::change(root, change);
        let result = match changed {
            Ok(Ok(())) => catch_unwind(AssertUnwindSafe(|| Ok(run(root)))),
            Ok(Err(error)) => Ok(Err(error)),
            Err(panic) => Err(panic),
        };
        Self::put_back(root, undo, pointers);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Walks as far as possible; returns how the walk ended, and the shared pointers that it
    /// replaced.
    fn change<M: Quantizable + ?Sized>(
        root: &mut M,
        visitor: &mut dyn VisitorMut,
    ) -> (std::thread::Result<Result<()>>, HashMap<SharedKey, Replaced>) {
        // After a panic the tree is looked at in the second walk only, which is there to mend it.
        let mut walk = WalkMut::new(visitor);
        let result = catch_unwind(AssertUnwindSafe(|| root.visit_mut(&mut walk)));
        (result, walk.shared)
    }

    fn put_back<M: Quantizable + ?Sized>(
        root: &mut M,
        undo: &mut dyn VisitorMut,
        pointers: HashMap<SharedKey, Replaced>,
    ) {
        let pointers = pointers.into_values();
        let mut walk = WalkMut {
            shared: pointers.map(|replaced| (replaced.key, replaced)).collect(),
            puts_back: true,
            ..WalkMut::new(undo)
        };
        // It stops where the first walk stopped; nothing beyond was changed.
        let _ = catch_unwind(AssertUnwindSafe(|| root.visit_mut(&mut walk)));
    }

    /// Visits a child under `name`.
    ///
    /// # Errors
    /// As [`Quantizable::visit_mut`].
    pub fn child<M: Quantizable + ?Sized>(
        &mut self,
        name: impl fmt::Display,
        child: &mut M,
    ) -> Result<()> {
        let before = push(&mut self.path, name);
        let result = child.visit_mut(self);
        self.path.truncate(before);
        result
    }

    /// Shows a layer at the present path.
    #[doc(hidden)]
    pub fn layer<L: Layer>(&mut self, layer: &mut L) -> Result<()> {
        let changed = self.visitor.layer(&self.path, layer);
        self.changes += usize::from(changed.map_err(|e| e.at(&self.path))?);
        Ok(())
    }

    /// Shows a norm at the present path.
    pub(crate) fn norm(&mut self, norm: &mut dyn AnyNorm) -> Result<()> {
        let changed = self.visitor.norm(&self.path, norm);
        self.changes += usize::from(changed.map_err(|e| e.at(&self.path))?);
        Ok(())
    }

    /// Visits what `shared` points to, the first time this pointer is met.
    ///
    /// If a layer below is changed, the pointer is replaced by a changed copy, here and
    /// wherever the walk meets it again; pointers held outside the tree keep the old value.
    pub(super) fn shared<P: Pointer<Target: Clone>>(&mut self, shared: &mut P) -> Result<()> {
        let key = shared_key(shared);
        if let Some(Replaced { old, new, .. }) = self.shared.get(&key) {
            let pointer = if self.puts_back { old } else { new };
            let pointer = pointer.downcast_ref::<P>();
            let pointer = pointer.ok_or_else(|| {
                Error::from(Fault::InconsistentWalk {
                    message: format!("the pointer at {} changed its type", self.path),
                })
            })?;
            // The value that holds this pointer changes with it, although no layer is visited here.
            self.changes += usize::from(shared_key(shared) != shared_key(pointer));
            *shared = pointer.clone();
            return Ok(());
        }
        if self.puts_back {
            return Ok(());
        }
        let old = shared.clone();
        let mut copy = P::Target::clone(shared);
        let before = self.changes;
        copy.visit_mut(self)?;
        if self.changes != before {
            *shared = P::from(copy);
        }
        let replaced =
            Replaced { old: Box::new(old), new: Box::new(shared.clone()), key: shared_key(shared) };
        self.shared.insert(key, replaced);
        Ok(())
    }
}
