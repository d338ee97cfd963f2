//! Messages and names of the kubelet's device plugin API, version v1beta1.
//!
//! The kubelet keeps this version: fields are added to it, and none changes. A crate with the
//! messages would need protoc at build time, and lacks the names of CDI devices.

use std::collections::BTreeMap;

/// The version that a plugin registers with.
pub(crate) const VERSION: &str = "v1beta1";
/// The name of the kubelet's socket in the directory of the plugins.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";

/// The health of a device that can be allocated.
pub(crate) const HEALTHY: &str = "Healthy";
/// The health of a device that the kubelet allocates to no container.
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// The method of the kubelet by which a plugin registers.
pub(crate) const REGISTER: &str = "/v1beta1.Registration/Register";
/// The method that returns [`DevicePluginOptions`].
pub(crate) const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
/// The method that sends the list of devices, and sends it again after each change.
pub(crate) const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
/// The method that chooses among devices.
pub(crate) const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
/// The method that returns what a container gets.
pub(crate) const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
/// The method that is called before a container starts, if [`DevicePluginOptions`] asks for it.
pub(crate) const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";

/// A message without fields, of any method.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Empty {}

/// The methods that a plugin has.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct DevicePluginOptions {
    /// True if [`PRE_START`] has to be called.
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    /// True if [`PREFERRED`] may be called.
    #[prost(bool, tag = "2")]
    pub(crate) get_preferred_allocation_available: bool,
}

/// The request of [`REGISTER`].
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    /// The name of the plugin's socket in the directory of the plugins.
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    /// The name by which pods request the devices.
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    /// The methods of the plugin.
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<DevicePluginOptions>,
}

/// A message of [`LIST_AND_WATCH`]: all devices.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListAndWatchResponse {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

/// A device. Its NUMA node is left out, because Rocade's devices have none.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Device {
    /// The name, of at most 63 characters.
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

/// The request of [`PREFERRED`].
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreferredAllocationRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// The choice for one container.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerPreferredAllocationRequest {
    /// The devices to choose from.
    #[prost(string, repeated, tag = "1")]
    pub(crate) available_device_ids: Vec<String>,
    /// The devices that belong to the choice in any case.
    #[prost(string, repeated, tag = "2")]
    pub(crate) must_include_device_ids: Vec<String>,
    /// The number of devices.
    #[prost(int32, tag = "3")]
    pub(crate) allocation_size: i32,
}

/// The response of [`PREFERRED`].
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PreferredAllocationResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The devices that a plugin prefers for one container.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerPreferredAllocationResponse {
    /// Their names.
    #[prost(string, repeated, tag = "1")]
    pub(crate) device_ids: Vec<String>,
}

/// The request of [`ALLOCATE`].
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_requests: Vec<DeviceIds>,
}

/// The devices of one container, in the requests of [`ALLOCATE`] and [`PRE_START`].
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeviceIds {
    /// Their names.
    #[prost(string, repeated, tag = "1")]
    pub(crate) devices_ids: Vec<String>,
}

/// The response of [`ALLOCATE`].
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AllocateResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_responses: Vec<ContainerAllocateResponse>,
}

/// Variables, mounts and devices that a container gets.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerAllocateResponse {
    /// Environment variables.
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) envs: BTreeMap<String, String>,
    /// Mounts.
    #[prost(message, repeated, tag = "2")]
    pub(crate) mounts: Vec<Mount>,
    /// Device files.
    #[prost(message, repeated, tag = "3")]
    pub(crate) devices: Vec<DeviceSpec>,
    /// CDI devices, which the container runtime looks up. Kubelets ignore them before 1.29.
    #[prost(message, repeated, tag = "5")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
}

/// A file or directory of the host in a container.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mount {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    /// The path on the host.
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    /// True if the container cannot write to it.
    #[prost(bool, tag = "3")]
    pub(crate) read_only: bool,
}

/// A device file of the host in a container.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeviceSpec {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    /// The path on the host.
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    /// Letters of `rwm`: read, write, make the file.
    #[prost(string, tag = "3")]
    pub(crate) permissions: String,
}

/// A CDI device.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CdiDevice {
    /// The name with its kind, such as `rocade.dev/nic=0`.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// Returns a field of a message: its number, and a length before the content.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, len], content].concat()
    }

    /// Checks the numbers of fields, which no test with both ends of this crate would notice.
    #[test]
    fn fields_have_the_numbers_of_the_kubelet() {
        let mount = Mount {
            container_path: "/c".to_owned(),
            host_path: "/h".to_owned(),
            read_only: true,
        };
        let device = DeviceSpec {
            container_path: "/d".to_owned(),
            host_path: "/e".to_owned(),
            permissions: "rw".to_owned(),
        };
        let name = "rocade.dev/nic=0".to_owned();
        let response = AllocateResponse {
            container_responses: vec![ContainerAllocateResponse {
                envs: [("A".to_owned(), "1".to_owned())].into(),
                mounts: vec![mount],
                devices: vec![device],
                cdi_devices: vec![CdiDevice { name }],
            }],
        };
        let container = [
            field(1, &[field(1, b"A"), field(2, b"1")].concat()),
            field(
                2,
                &[field(1, b"/c"), field(2, b"/h"), vec![3 << 3, 1]].concat(),
            ),
            field(
                3,
                &[field(1, b"/d"), field(2, b"/e"), field(3, b"rw")].concat(),
            ),
            field(5, &field(1, b"rocade.dev/nic=0")),
        ];
        assert_eq!(response.encode_to_vec(), field(1, &container.concat()));

        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: "x.sock".to_owned(),
            resource_name: "a.b/c".to_owned(),
            options: Some(DevicePluginOptions {
                pre_start_required: true,
                get_preferred_allocation_available: true,
            }),
        };
        let parts = [
            field(1, b"v1beta1"),
            field(2, b"x.sock"),
            field(3, b"a.b/c"),
            field(4, &[1 << 3, 1, 2 << 3, 1]),
        ];
        assert_eq!(request.encode_to_vec(), parts.concat());
        let list = field(1, &[field(1, b"nic-0"), field(2, b"Healthy")].concat());
        let list = ListAndWatchResponse::decode(&*list).unwrap();
        assert_eq!(
            (&*list.devices[0].id, &*list.devices[0].health),
            ("nic-0", HEALTHY)
        );
        let wanted = [field(1, b"nic-1"), field(2, b"nic-0"), vec![3 << 3, 2]].concat();
        let wanted = ContainerPreferredAllocationRequest::decode(&*wanted).unwrap();
        assert_eq!(wanted.available_device_ids, ["nic-1"]);
        assert_eq!(wanted.must_include_device_ids, ["nic-0"]);
        assert_eq!(wanted.allocation_size, 2);
    }
}
