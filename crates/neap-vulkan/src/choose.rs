//! Which device of those that there are, and what it lacks if it cannot be used.

use crate::error::{Tried, VulkanError};
use crate::instance::Instance;
use ash::{amd, ext::external_memory_host, ext::memory_budget, nv, vk};

pub(crate) struct Chosen {
    pub raw: vk::PhysicalDevice,
    pub queue_family: u32,
    /// For copies beside computes, where there is one for that.
    pub transfer: Transfers,
    /// It is the processor.
    pub is_cpu: bool,
    /// Eight lanes at least run together, and each can tell the others something.
    pub lanes_tell: bool,
    /// Of a workgroup: its invocations, and bytes of their memory.
    pub workgroup: [u32; 2],
    /// How many groups of it compute at once, about; 0 where it does not tell.
    pub processors: u32,
    /// It tells how much of its memory is taken.
    pub tells_budget: bool,
    pub name: String,
    pub uuid: [u8; 16],
    /// It has memory of its own, beside the host's.
    pub is_card: bool,
    pub limits: vk::PhysicalDeviceLimits,
    pub allocation_bytes: u64,
    pub import_align: u64,
}

/// The queue for copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfers {
    pub family: u32,
    pub index: u32,
}

impl Transfers {
    /// Of a family for copies alone, else a second queue of the one that computes, else that queue.
    fn of(families: &[vk::QueueFamilyProperties], compute: u32) -> Transfers {
        let others = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
        let video = vk::QueueFlags::from_raw(0x60);
        let copies_only = |f: &vk::QueueFamilyProperties| {
            let has = |flags| f.queue_flags.intersects(flags);
            has(vk::QueueFlags::TRANSFER) && !has(others) && !has(video) && f.queue_count > 0
        };
        if let Some(family) = families.iter().position(copies_only) {
            return Transfers {
                family: family as u32,
                index: 0,
            };
        }
        let count = families.get(compute as usize).map_or(1, |f| f.queue_count);
        Transfers {
            family: compute,
            index: u32::from(count > 1),
        }
    }
}

/// The device of that number, or the best one that can be used: those that share the host's memory first.
pub(crate) fn choose(instance: &Instance, number: Option<usize>) -> Result<Chosen, VulkanError> {
    // SAFETY: the instance lives.
    let all = unsafe { instance.raw.enumerate_physical_devices() };
    let all = all.tried("cannot be listed")?;
    if let Some(number) = number {
        let device = all.get(number).ok_or_else(|| {
            VulkanError::NoDevice(format!("there is no number {number} of {}", all.len()))
        })?;
        return look(instance, *device).map(|(_, chosen)| chosen);
    }
    let mut lacks = Vec::new();
    let mut best: Option<(u32, Chosen)> = None;
    for device in all {
        match look(instance, device) {
            Ok(found) if best.as_ref().is_none_or(|best| found.0 < best.0) => best = Some(found),
            Ok(_) => {}
            Err(e) => lacks.push(e.to_string()),
        }
    }
    best.map(|(_, chosen)| chosen).ok_or_else(|| {
        VulkanError::NoDevice(match lacks.is_empty() {
            true => "there is none".into(),
            false => lacks.join("; "),
        })
    })
}

/// Its rank, the lower the better.
fn look(instance: &Instance, device: vk::PhysicalDevice) -> Result<(u32, Chosen), VulkanError> {
    let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut maintenance = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut subgroups = vk::PhysicalDeviceSubgroupProperties::default();
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut ids)
        .push_next(&mut subgroups)
        .push_next(&mut host)
        .push_next(&mut maintenance);
    let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut timeline);
    // SAFETY: the device is one of the instance's; what is filled lives.
    let (families, extensions) = unsafe {
        instance
            .raw
            .get_physical_device_properties2(device, &mut properties);
        instance
            .raw
            .get_physical_device_features2(device, &mut features);
        let families = instance
            .raw
            .get_physical_device_queue_family_properties(device);
        let extensions = instance.raw.enumerate_device_extension_properties(device);
        (families, extensions.tried("lists no extensions")?)
    };
    let properties = properties.properties;
    let name = properties.device_name_as_c_str().unwrap_or(c"unnamed");
    let name = name.to_string_lossy().into_owned();
    let lacks = |what: &str| Err(VulkanError::NoDevice(format!("{name} lacks {what}")));
    let queue_family =
        (families.iter()).position(|f| f.queue_flags.contains(vk::QueueFlags::COMPUTE));
    let has = |name: &std::ffi::CStr| {
        let mut names = extensions.iter().map(|e| e.extension_name_as_c_str());
        names.any(|n| n.is_ok_and(|n| n == name))
    };
    let has_import = has(external_memory_host::NAME);
    let limits = properties.limits;
    if properties.api_version < vk::API_VERSION_1_2 {
        return lacks("Vulkan 1.2");
    }
    if !has_import {
        return lacks("VK_EXT_external_memory_host");
    }
    if timeline.timeline_semaphore == vk::FALSE {
        return lacks("timeline semaphores");
    }
    if limits.max_per_stage_descriptor_storage_buffers < 5
        || limits.max_compute_work_group_invocations < 64
    {
        return lacks("bindings or invocations");
    }
    let Some(queue_family) = queue_family else {
        return lacks("a queue that computes");
    };
    let rank = match properties.device_type {
        vk::PhysicalDeviceType::INTEGRATED_GPU => 0,
        vk::PhysicalDeviceType::DISCRETE_GPU => 1,
        vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
        vk::PhysicalDeviceType::CPU => 3,
        _ => 4,
    };
    let chosen = Chosen {
        raw: device,
        queue_family: queue_family as u32,
        transfer: Transfers::of(&families, queue_family as u32),
        is_cpu: properties.device_type == vk::PhysicalDeviceType::CPU,
        lanes_tell: subgroups.subgroup_size >= 8
            && (subgroups.supported_stages).contains(vk::ShaderStageFlags::COMPUTE)
            && (subgroups.supported_operations).contains(vk::SubgroupFeatureFlags::BALLOT),
        workgroup: [
            limits
                .max_compute_work_group_invocations
                .min(limits.max_compute_work_group_size[0]),
            limits.max_compute_shared_memory_size,
        ],
        processors: processors(instance, device, &has),
        tells_budget: has(memory_budget::NAME),
        name,
        uuid: ids.device_uuid,
        is_card: properties.device_type == vk::PhysicalDeviceType::DISCRETE_GPU,
        limits,
        allocation_bytes: maintenance.max_memory_allocation_size,
        import_align: host.min_imported_host_pointer_alignment,
    };
    Ok((rank, chosen))
}

/// As its maker's own extension tells.
fn processors(
    instance: &Instance,
    device: vk::PhysicalDevice,
    has: &dyn Fn(&std::ffi::CStr) -> bool,
) -> u32 {
    let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
    let (of_nvidia, of_amd) = (
        has(nv::shader_sm_builtins::NAME),
        has(amd::shader_core_properties::NAME),
    );
    let mut properties = vk::PhysicalDeviceProperties2::default();
    if of_nvidia {
        properties = properties.push_next(&mut nvidia);
    }
    if of_amd {
        properties = properties.push_next(&mut amd);
    }
    // SAFETY: the device is one of the instance's; what is filled lives, and is of extensions that it has.
    unsafe { (instance.raw).get_physical_device_properties2(device, &mut properties) };
    let of_amd = amd.shader_engine_count
        * amd.shader_arrays_per_engine_count
        * amd.compute_units_per_shader_array;
    nvidia.shader_sm_count.max(of_amd)
}
