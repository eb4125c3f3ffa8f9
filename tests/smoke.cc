#include <cstdio>

#include "tessera.h"
using namespace tessera;
#define OK(e)                                                  \
  do {                                                         \
    auto s = (e);                                              \
    if (!s.ok()) {                                             \
      std::printf("%d: %s\n", __LINE__, s.ToString().c_str()); \
      return 1;                                                \
    }                                                          \
  } while (0)
int main() {
  auto client = Client::connect({.num_local_devices = 8});
  OK(client.status());
  auto mesh = create_mesh(*client, {{"batch", 4}, {"model", 2}});
  OK(mesh.status());
  std::printf("%s\n", mesh->to_string().c_str());
  DTensor x = iota<float>({10, 6}, Layout::parse(*mesh, "[batch, -]"));
  for (const char* l : {"[-, model]", "[-, -]", "[model, batch]", "[(model,batch), -]",
                        "[batch, -] sum{model}", "[-,batch]", "[-, -] max{batch}", "[batch, model]",
                        "[-, -] sum{batch,model}", "[-, batch] sum{model}", "[-,-]"}) {
    x = relayout(x, Layout::parse(*mesh, l));
    OK(x.await());
    auto h = x.to_host<float>();
    OK(h.status());
    for (int i = 0; i < 60; ++i)
      if (h->data[i] != i) {
        std::printf("%s wrong %d %f\n", l, i, h->data[i]);
        return 1;
      }
    std::printf("%s ok\n", l);
  }
  OK(mesh->barrier("b", absl::Seconds(5)));
  OK(client->sync_devices());
  absl::Time t = absl::Now();
  for (int i = 0; i < 1000; ++i) OK(mesh->barrier("b"));
  std::printf("barrier %.1f us\n", absl::ToDoubleMicroseconds(absl::Now() - t) / 1000);
  OK(client->shutdown());
  OK(client->shutdown());
}
