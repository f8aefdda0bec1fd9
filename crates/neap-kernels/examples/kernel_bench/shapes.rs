//! What is measured: all convolutions of ResNet-50 and VGG-19, and shapes of other networks that differ from them.

use neap_kernels::conv::ConvForm;

/// A convolution; padding keeps the size, but for patches that do not overlap.
pub struct Conv {
    pub name: &'static str,
    pub form: ConvForm,
    pub c_in: usize,
    pub c_out: usize,
    pub groups: usize,
    /// Height and width of the input.
    pub size: usize,
    pub kernel: usize,
    pub stride: usize,
}

const fn conv(
    name: &'static str,
    form: ConvForm,
    [c_in, c_out]: [usize; 2],
    groups: usize,
    size: usize,
    [kernel, stride]: [usize; 2],
) -> Conv {
    Conv {
        name,
        form,
        c_in,
        c_out,
        groups,
        size,
        kernel,
        stride,
    }
}

/// One group, input in channel blocks.
const fn dense(
    name: &'static str,
    channels: [usize; 2],
    size: usize,
    kernel_stride: [usize; 2],
) -> Conv {
    conv(name, ConvForm::Blocked, channels, 1, size, kernel_stride)
}

use ConvForm::{Blocked, FirstLayer, NarrowGroups};

#[rustfmt::skip]
pub const CONVOLUTIONS: &[Conv] = &[
    conv("resnet50", FirstLayer, [3, 64], 1, 224, [7, 2]),
    dense("resnet50", [64, 64], 56, [1, 1]),
    dense("resnet50", [64, 64], 56, [3, 1]),
    dense("resnet50", [64, 256], 56, [1, 1]),
    dense("resnet50", [256, 64], 56, [1, 1]),
    dense("resnet50", [256, 128], 56, [1, 1]),
    dense("resnet50", [128, 128], 56, [3, 2]),
    dense("resnet50", [256, 512], 56, [1, 2]),
    dense("resnet50", [128, 512], 28, [1, 1]),
    dense("resnet50", [512, 128], 28, [1, 1]),
    dense("resnet50", [128, 128], 28, [3, 1]),
    dense("resnet50", [512, 256], 28, [1, 1]),
    dense("resnet50", [256, 256], 28, [3, 2]),
    dense("resnet50", [512, 1024], 28, [1, 2]),
    dense("resnet50", [256, 1024], 14, [1, 1]),
    dense("resnet50", [1024, 256], 14, [1, 1]),
    dense("resnet50", [256, 256], 14, [3, 1]),
    dense("resnet50", [1024, 512], 14, [1, 1]),
    dense("resnet50", [512, 512], 14, [3, 2]),
    dense("resnet50", [1024, 2048], 14, [1, 2]),
    dense("resnet50", [512, 2048], 7, [1, 1]),
    dense("resnet50", [2048, 512], 7, [1, 1]),
    dense("resnet50", [512, 512], 7, [3, 1]),
    conv("vgg19", FirstLayer, [3, 64], 1, 224, [3, 1]),
    dense("vgg19", [64, 64], 224, [3, 1]),
    dense("vgg19", [64, 128], 112, [3, 1]),
    dense("vgg19", [128, 128], 112, [3, 1]),
    dense("vgg19", [128, 256], 56, [3, 1]),
    dense("vgg19", [256, 256], 56, [3, 1]),
    dense("vgg19", [256, 512], 28, [3, 1]),
    dense("vgg19", [512, 512], 28, [3, 1]),
    dense("vgg19", [512, 512], 14, [3, 1]),
    dense("mobilenet_v2", [32, 16], 112, [1, 1]),
    dense("mobilenet_v2", [16, 96], 112, [1, 1]),
    dense("mobilenet_v2", [144, 24], 56, [1, 1]),
    dense("mobilenet_v2", [64, 384], 14, [1, 1]),
    dense("mobilenet_v2", [384, 64], 14, [1, 1]),
    dense("mobilenet_v2", [160, 960], 7, [1, 1]),
    dense("mobilenet_v2", [960, 160], 7, [1, 1]),
    dense("densenet121", [128, 32], 28, [3, 1]),
    conv("resnext50", NarrowGroups, [128, 128], 32, 56, [3, 1]),
    conv("resnext50", NarrowGroups, [256, 256], 32, 28, [3, 1]),
    conv("resnext50", Blocked, [512, 512], 32, 14, [3, 1]),
    conv("resnext50", Blocked, [1024, 1024], 32, 7, [3, 1]),
    conv("vit_b_16", FirstLayer, [3, 768], 1, 224, [16, 16]),
];

/// `(name, m, k, n)`
pub const LINEARS: &[(&str, usize, usize, usize)] = &[
    ("vit_b_16 qkv", 197, 768, 2304),
    ("vit_b_16 mlp up", 197, 768, 3072),
    ("vit_b_16 mlp down", 197, 3072, 768),
    ("gpt2 qkv", 128, 768, 2304),
    ("gpt2 mlp down", 128, 3072, 768),
    ("rows 8", 8, 1024, 1024),
    ("resnet50 fc", 1, 2048, 1000),
    ("vgg19 fc", 1, 25088, 4096),
];

/// `(name, batch, m, k, n, b transposed)`
pub const PRODUCTS: &[(&str, usize, usize, usize, usize, bool)] = &[
    ("attention q.kT", 12, 197, 64, 197, true),
    ("attention p.v", 12, 197, 197, 64, false),
    ("square", 1, 512, 512, 512, false),
];
