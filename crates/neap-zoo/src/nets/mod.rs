//! The networks, one file per family.

pub(crate) mod densenet;
pub(crate) mod diffusion;
pub(crate) mod efficientnet;
pub(crate) mod gpt2;
pub(crate) mod inception;
pub(crate) mod inception_v4;
pub(crate) mod mobilenet;
pub(crate) mod nasnet;
pub(crate) mod recurrent;
pub(crate) mod resnet;
pub(crate) mod saliency;
pub(crate) mod small;
pub(crate) mod squeezenet;
pub(crate) mod srvgg;
pub(crate) mod transformer;
pub(crate) mod vgg;
pub(crate) mod vit;
pub(crate) mod yolo;
