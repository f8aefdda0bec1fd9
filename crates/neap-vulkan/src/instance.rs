//! The library, loaded at run time, and an instance of it; in tests with validation, whose messages are kept.

use crate::error::{Tried, VulkanError};
use ash::{ext::debug_utils, vk};
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

pub(crate) struct Instance {
    pub raw: ash::Instance,
    messenger: Option<Messenger>,
    // Unloads the library, so it goes last.
    _entry: ash::Entry,
}

struct Messenger {
    functions: debug_utils::Instance,
    raw: vk::DebugUtilsMessengerEXT,
    /// At an address that does not change: the library keeps it.
    said: Box<Said>,
}

type Said = Mutex<Vec<String>>;

impl Instance {
    pub(crate) fn new(validate: bool) -> Result<Instance, VulkanError> {
        // SAFETY: the system's Vulkan loader is trusted to be one.
        let entry =
            unsafe { ash::Entry::load() }.map_err(|e| VulkanError::NoVulkan(e.to_string()))?;
        let application = vk::ApplicationInfo::default()
            .application_name(c"neaptide")
            .api_version(vk::API_VERSION_1_2);
        let layers = [VALIDATION.as_ptr()];
        let extensions = [debug_utils::NAME.as_ptr()];
        let mut info = vk::InstanceCreateInfo::default().application_info(&application);
        if validate {
            // SAFETY: a plain query.
            let there = unsafe { entry.enumerate_instance_layer_properties() };
            let there = there.tried("lists its layers")?;
            let is_it = |layer: &vk::LayerProperties| {
                layer.layer_name_as_c_str().is_ok_and(|n| n == VALIDATION)
            };
            if !there.iter().any(is_it) {
                let what = "the validation layer is not installed";
                return Err(VulkanError::NoVulkan(what.into()));
            }
            info = info
                .enabled_layer_names(&layers)
                .enabled_extension_names(&extensions);
        }
        // SAFETY: what the information points to lives.
        let raw = unsafe { entry.create_instance(&info, None) }
            .map_err(|e| VulkanError::NoVulkan(format!("an instance cannot be made: {e}")))?;
        let mut instance = Instance {
            raw,
            messenger: None,
            _entry: entry,
        };
        if validate {
            instance.listen()?;
        }
        Ok(instance)
    }

    fn listen(&mut self) -> Result<(), VulkanError> {
        let said: Box<Said> = Box::default();
        let functions = debug_utils::Instance::new(&self._entry, &self.raw);
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                    | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
            )
            .message_type(
                vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION
                    | vk::DebugUtilsMessageTypeFlagsEXT::GENERAL,
            )
            .pfn_user_callback(Some(hear))
            .user_data(std::ptr::from_ref::<Said>(&said).cast_mut().cast());
        // SAFETY: the list of messages outlives the messenger, which is destroyed first.
        let raw = unsafe { functions.create_debug_utils_messenger(&info, None) };
        self.messenger = Some(Messenger {
            raw: raw.tried("lets no one listen")?,
            functions,
            said,
        });
        Ok(())
    }

    /// What validation has said so far.
    pub(crate) fn messages(&self) -> Vec<String> {
        let said = self.messenger.as_ref().map(|messenger| &messenger.said);
        said.map_or(Vec::new(), |said| {
            said.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: whatever was made of it is gone: it is dropped after all of that.
        unsafe {
            if let Some(messenger) = &self.messenger {
                messenger
                    .functions
                    .destroy_debug_utils_messenger(messenger.raw, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

unsafe extern "system" fn hear(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    said: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer calls with a message, and with the list that it was given, which outlives the messenger.
    unsafe {
        let said = &*said.cast::<Said>();
        let text = (*data).message_as_c_str();
        let text = text.map_or(String::new(), |text| text.to_string_lossy().into_owned());
        said.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text);
    }
    vk::FALSE
}
