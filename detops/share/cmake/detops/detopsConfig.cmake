# find_package(detops) gives the target detops::detops: the headers and libdetops.so of this package,
# with the LibTorch that they are compiled with. Where the package has the CUDA ops there is
# detops::cuda too, which a program for a GPU is linked to as well.
#
# The installed package's folder is known to Python:
#     cmake -DCMAKE_PREFIX_PATH="$(python -c 'import detops; print(detops.cmake_prefix_path)')"
#
# LibTorch is what find_package(Torch) has found, if a project calls it first; otherwise what lies on
# CMAKE_PREFIX_PATH, or beside this package. It is not looked for with find_package(Torch): the one of
# a PyTorch for CUDA asks for a CUDA toolkit, with which these ops have nothing to do.
get_filename_component(_detops_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

set(_detops_torch "")
string(REPLACE ":" ";" _detops_environment "$ENV{CMAKE_PREFIX_PATH}")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _detops_environment)
  # A prefix, or the folder of CMake files in it, as torch.utils.cmake_prefix_path is.
  list(APPEND _detops_torch "${_prefix}" "${_prefix}/../..")
endforeach()
find_path(DETOPS_TORCH_INCLUDE_DIR torch/csrc/stable/c/shim.h
  HINTS ${TORCH_INSTALL_PREFIX} ENV TORCH_INSTALL_PREFIX ${_detops_torch} "${_detops_root}/../torch"
  PATH_SUFFIXES include)
mark_as_advanced(DETOPS_TORCH_INCLUDE_DIR)

if(NOT DETOPS_TORCH_INCLUDE_DIR)
  set(detops_FOUND FALSE)
  set(detops_NOT_FOUND_MESSAGE "no LibTorch of version 2.10 or newer was found. Add Python's torch.utils.cmake_prefix_path, or the folder of a LibTorch, to CMAKE_PREFIX_PATH.")
  return()
endif()
get_filename_component(_detops_torch_lib "${DETOPS_TORCH_INCLUDE_DIR}/../lib" ABSOLUTE)

function(_detops_add name library)
  if(TARGET ${name})
    return()
  endif()
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${library}")
endfunction()

_detops_add(detops::torch_cpu "${_detops_torch_lib}/libtorch_cpu.so")
set_target_properties(detops::torch_cpu PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${DETOPS_TORCH_INCLUDE_DIR}")

# The ops register themselves when their library is loaded, so a program needs it even where it names
# nothing of it, as one does that runs an exported model: a linker that is given --as-needed would
# leave it out.
_detops_add(detops::detops "${_detops_root}/libdetops.so")
set_target_properties(detops::detops PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${_detops_root}/include"
  INTERFACE_COMPILE_FEATURES cxx_std_17
  INTERFACE_LINK_LIBRARIES "detops::torch_cpu;${CMAKE_DL_LIBS}"
  INTERFACE_LINK_OPTIONS
    "LINKER:--push-state,--no-as-needed,${_detops_root}/libdetops.so,--pop-state")

if(EXISTS "${_detops_root}/libdetops_cuda.so" AND EXISTS "${_detops_torch_lib}/libtorch_cuda.so")
  _detops_add(detops::cuda "${_detops_root}/libdetops_cuda.so")
  set_target_properties(detops::cuda PROPERTIES
    INTERFACE_LINK_LIBRARIES detops::detops
    INTERFACE_LINK_OPTIONS
      "LINKER:--push-state,--no-as-needed,${_detops_root}/libdetops_cuda.so,${_detops_torch_lib}/libtorch_cuda.so,--pop-state")
endif()
