// SPDX-License-Identifier: Apache-2.0
//
// NewFolder: a folder that appears under its name only when it is whole.
//
//   TESSERA_ASSIGN_OR_RETURN(NewFolder folder, NewFolder::create("model", "model.1f.partial"));
//   ... write files into folder.partial_path() ...
//   TESSERA_RETURN_IF_ERROR(folder.commit());
//
// The destructor removes the folder and its files, unless commit() returned OK. A single file is a
// NewFile (files/new_file.h). Used by one thread.
#ifndef TESSERA_TOOLS_CKPT_TOOL_NEW_FOLDER_H_
#define TESSERA_TOOLS_CKPT_TOOL_NEW_FOLDER_H_

#include <string>
#include <utility>

#include "base/status.h"

namespace tessera::ckpt_tool {

class NewFolder {
 public:
  // Makes `partial_path`, which becomes `path`. AlreadyExists where it is there.
  static StatusOr<NewFolder> create(std::string path, std::string partial_path);

  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&& other) = delete;
  ~NewFolder();

  const std::string& partial_path() const { return partial_path_; }
  // Syncs the folder and renames it. AlreadyExists where the name is taken.
  Status commit();

 private:
  NewFolder(std::string path, std::string partial_path)
      : path_(std::move(path)), partial_path_(std::move(partial_path)) {}

  std::string path_;
  std::string partial_path_;
  bool owns_ = true;  // whether the destructor removes the partial folder
};

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_NEW_FOLDER_H_
