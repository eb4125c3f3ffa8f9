// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/member_list.h"

#include <map>

#include "tessera/job/coordinator/coordinator.pb.h"

namespace tessera {

std::string encode_members(const std::vector<MemberInfo>& members) {
  rpc::MemberList list;
  std::map<std::string, int> texts;
  const auto index_of = [&](const std::string& text) {
    const auto [it, is_new] = texts.emplace(text, list.texts_size());
    if (is_new) list.add_texts(text);
    return it->second;
  };
  for (const MemberInfo& info : members) {
    list.add_hosts(index_of(info.host));
    list.add_host_ids(index_of(info.host_id));
    list.add_device_types(index_of(info.device_type));
    list.add_arithmetics(index_of(info.arithmetic));
    list.add_pids(info.pid);
    list.add_incarnations(info.incarnation);
    list.add_num_local_devices(info.num_local_devices);
  }
  return list.SerializeAsString();
}

std::optional<std::vector<MemberInfo>> decode_members(const std::string& bytes, int num_clients) {
  rpc::MemberList list;
  if (!list.ParseFromString(bytes)) return std::nullopt;
  for (const int size :
       {list.hosts_size(), list.host_ids_size(), list.device_types_size(), list.arithmetics_size(),
        list.pids_size(), list.incarnations_size(), list.num_local_devices_size()}) {
    if (size != num_clients) return std::nullopt;
  }
  const auto text = [&](int index) {
    return index >= 0 && index < list.texts_size() ? list.texts(index) : std::string();
  };
  std::vector<MemberInfo> members(num_clients);
  for (int i = 0; i < num_clients; ++i) {
    members[i] = {i,
                  text(list.hosts(i)),
                  text(list.host_ids(i)),
                  list.pids(i),
                  list.incarnations(i),
                  list.num_local_devices(i),
                  text(list.device_types(i)),
                  text(list.arithmetics(i)),
                  {}};
  }
  return members;
}

}  // namespace tessera
